//go:build e2e

package redis

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/lane"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// fourLimits are what one request of a tenant is held to.
func fourLimits(tenant string, perMinute int64) []quota.Limit {
	return []quota.Limit{
		{Scope: quota.Tenant, Bucket: tenant, Amount: perMinute, Per: time.Minute},
		{Scope: quota.Tenant, Bucket: tenant, Unit: quota.Requests, Amount: perMinute, Per: time.Minute},
		{Scope: quota.Key, Bucket: tenant, Amount: perMinute, Per: time.Minute},
		{Scope: quota.Model, Bucket: tenant, Amount: perMinute, Per: time.Minute},
	}
}

// gateways are n that share a Redis, each with clients that keep asking under limits and
// sleep as they are told. It returns the tokens let in.
func gateways(t *testing.T, s *server, n int, length time.Duration, limits []quota.Limit, disturb func()) int {
	const tokens, clients = 10, 16
	var in atomic.Int64
	var wait sync.WaitGroup
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	for g := range n {
		cfg := testConfig(s)
		cfg.Deadline = time.Second
		r := dial(t, s, cfg)
		for c := range clients {
			k := lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: strconv.Itoa(g*clients + c)}
			wait.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					q := registry.Request{ID: k.Tenant + "." + strconv.Itoa(i), Lane: k, Deadline: s.now().Add(time.Minute), Tokens: tokens, Limit: time.Hour, Limits: limits, Patience: quota.MaxWait}
					for ctx.Err() == nil {
						a, err := r.Open(ctx, q, registry.Drain{Engines: 1})
						if err == nil && a.Reason == reason.OK {
							in.Add(tokens)
							_, _ = r.Finish(ctx, q.ID, "", nil, quota.Usage{})
							break
						}
						q.Slept = q.Slept || a.Sleep > 0
						sleep(ctx, max(a.Sleep, 5*time.Millisecond))
					}
				}
			})
		}
	}
	if disturb != nil {
		sleep(ctx, length/3)
		disturb()
	}
	wait.Wait()
	return int(in.Load())
}

// TestRealGateways: however many gateways there are, they keep one limit.
func TestRealGateways(t *testing.T) {
	const perSecond, length = 2000, 3 * time.Second
	for n := 1; n <= 3; n++ {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			s := real(t)
			s.shifted = nil
			limits := fourLimits("a", perSecond*60)
			empty(t, s, limits)
			in := gateways(t, s, n, length, limits, nil)
			full := perSecond * length.Seconds()
			t.Logf("%d gateways: %.3f of the limit", n, float64(in)/full)
			if float64(in) > full*1.02+10 || float64(in) < full*0.9 {
				t.Errorf("%d tokens went in, want about %.0f", in, full)
			}
		})
	}
}

// empty takes all that the limits hold.
func empty(t *testing.T, s *server, limits []quota.Limit) {
	q := request("all", chat)
	q.Deadline, q.Limits, q.Tokens = s.now().Add(time.Minute), limits, int(limits[0].Amount*int64(quota.Burst)/int64(time.Minute))
	if a, err := dial(t, s, testConfig(s)).Open(t.Context(), q, registry.Drain{Engines: 1}); err != nil || a.Reason != reason.OK {
		t.Fatalf("open: %+v, %v", a, err)
	}
}

// TestRealLimitsSurvive kills Redis, which comes back with what it had written a second
// before, and then empties it: what goes in beyond the limit is a second's worth, or what
// the limit holds. E2E_REDIS_START is the command that starts it again.
func TestRealLimitsSurvive(t *testing.T) {
	again := strings.Fields(os.Getenv("E2E_REDIS_START"))
	if len(again) == 0 {
		t.Fatal("E2E_REDIS_START is not set: give the command that starts the Redis of E2E_REDIS")
	}
	const perSecond, length = 200, 6 * time.Second
	limits := fourLimits("a", perSecond*60)
	full := perSecond * length.Seconds()
	for _, c := range []struct {
		name    string
		beyond  float64
		disturb func(s *server)
	}{
		{"killed", 2 * perSecond, func(s *server) {
			info := fields(s.raw.Info(context.Background(), "server").Val())
			pid, err := strconv.Atoi(info["process_id"])
			if err != nil || pid < 2 {
				t.Errorf("its pid is %q", info["process_id"])
				return
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			time.Sleep(300 * time.Millisecond)
			if out, err := exec.Command(again[0], again[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", again, err, out)
			}
		}},
		{"emptied", perSecond * quota.Burst.Seconds(), func(s *server) { s.raw.FlushDB(context.Background()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := real(t)
			s.shifted = nil
			empty(t, s, limits)
			in := gateways(t, s, 3, length, limits, func() { c.disturb(s) })
			t.Logf("%.0f tokens beyond the limit of %.0f", float64(in)-full, full)
			if float64(in) > full*1.02+c.beyond+10 {
				t.Errorf("%d tokens went in, want %.0f and %.0f more at most", in, full, c.beyond)
			}
			if float64(in) < full*0.6 {
				t.Errorf("%d tokens went in, want most of %.0f", in, full)
			}
		})
	}
}

// BenchmarkRealLimits is open under four limits, let in and refused, by one caller and
// by many. Decisions/s of Redis's one core are 1e6 / redis-cpu-us, its system time and
// network included, whatever else this host does.
func BenchmarkRealLimits(b *testing.B) {
	s := real(b)
	s.shifted = nil
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = 1<<30, 1<<40, 1<<40
	r := dial(b, s, cfg)
	var n atomic.Int64
	ask := func(b *testing.B, limits []quota.Limit, want reason.Reason) {
		i := int(n.Add(1))
		q := request(name(i), lane.Key{Tier: "default", Type: "chat", Model: "m", Tenant: strconv.Itoa(i % 100)})
		q.Limits = limits
		if a, err := r.Open(b.Context(), q, registry.Drain{Engines: 1}); err != nil || a.Reason != want {
			b.Errorf("open: %+v, %v", a, err)
		}
	}
	for _, c := range []struct {
		name   string
		limits []quota.Limit
		want   reason.Reason
	}{
		{"none", nil, reason.OK}, {"in", fourLimits("a", 1<<40), reason.OK}, {"refused", fourLimits("b", 1), reason.RateLimited},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.want != reason.OK {
				ask(b, c.limits, reason.OK)
			}
			before := usedCPU(s)
			for b.Loop() {
				ask(b, c.limits, c.want)
			}
			b.ReportMetric((usedCPU(s)-before)*1e6/float64(b.N), "redis-cpu-us")
		})
		b.Run(c.name+" by 8", func(b *testing.B) {
			before := usedCPU(s)
			b.SetParallelism(4)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ask(b, c.limits, c.want)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "opens/s")
			b.ReportMetric((usedCPU(s)-before)*1e6/float64(b.N), "redis-cpu-us")
		})
	}
}

// usedCPU is the processor time Redis has used, in seconds.
func usedCPU(s *server) (used float64) {
	info := fields(s.raw.Info(context.Background(), "cpu").Val())
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		f, _ := strconv.ParseFloat(info[name], 64)
		used += f
	}
	return used
}
