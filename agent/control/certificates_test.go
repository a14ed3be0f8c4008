package control

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	penstockv1 "penstock/proto/penstock/v1"
)

// TestCertificatesEnd: the metric says when, the log once a day and status from 14 days
// on, and a new file ends it.
func TestCertificatesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		dir := t.TempDir()
		cfg := Config{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}
		a := newAuthorityFor(t, "servers", 100*day)
		sign := func(life time.Duration) {
			a.life = life
			cert, key := a.leaf("agent")
			write(t, cfg.Cert, cert, time.Now())
			write(t, cfg.Key, key, time.Now())
		}
		sign(16*day + time.Hour)
		write(t, cfg.ClientCA, a.pem(), time.Now())
		d := wire(t, Config{}, newFake("node-1"))
		reg := prometheus.NewPedanticRegistry()
		var err error
		d.grpc.keys, err = newKeyFiles(cfg, slog.New(slog.NewTextHandler(d.logs, nil)))
		check(t, err)
		check(t, reg.Register(d.grpc.keys))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.grpc.keys.watch(ctx); close(done) }()
		warned := func() int { synctest.Wait(); return strings.Count(d.logs.String(), "a grpc certificate ends soon") }
		told := func() []string {
			answer, err := service{Server: d.grpc}.Cluster(t.Context(), &penstockv1.ClusterRequest{})
			check(t, err)
			return answer.Warnings
		}
		time.Sleep(day)
		if n, texts := warned(), told(); n != 0 || len(texts) != 0 {
			t.Errorf("15 days before: %d warnings, %q; want none", n, texts)
		}
		if n := testutil.CollectAndCount(d.grpc.keys); n != 2 {
			t.Errorf("metric: got %d series, want server and client_ca", n)
		}
		time.Sleep(4 * day)
		if n := warned(); n != 3 && n != 4 {
			t.Errorf("11 days before: %d warnings in 4 days, want one a day from 14 days on", n)
		}
		if diff := cmp.Diff([]string{"the certificate of --grpc-cert ends in 11 days"}, told()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		before := warned()
		sign(90 * day)
		time.Sleep(3 * day)
		if n, texts := warned(), told(); n != before || len(texts) != 0 {
			t.Errorf("renewed: %d warnings more, %q; want none", n-before, texts)
		}
		families, err := reg.Gather()
		check(t, err)
		for _, m := range families[0].Metric {
			if m.Label[0].GetValue() == "server" && time.Until(time.Unix(int64(m.GetGauge().GetValue()), 0)).Round(day) != 87*day {
				t.Errorf("metric: got %v, want the new file's, in 87 days", m)
			}
		}
		cancel()
		<-done
	})
}

func TestExpiryText(t *testing.T) {
	now := time.Unix(1e9, 0)
	for want, left := range map[string]time.Duration{
		"the certificate of --grpc-cert ends in 3 days":   80 * time.Hour,
		"the certificate of --grpc-cert ends in 47 hours": 48*time.Hour - time.Second,
		"the certificate of --grpc-cert has ended":        0,
	} {
		if got := (&expiry{"server", "--grpc-cert", now.Add(left)}).text(now); got != want {
			t.Errorf("%v: got %q, want %q", left, got, want)
		}
	}
}
