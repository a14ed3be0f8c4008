//go:build e2e

package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"penstock/redisconn"
	"penstock/response"
)

// server is a real redis-server, E2E_REDIS=host:port; each test has a prefix of its own.
func server(t testing.TB) Config {
	t.Helper()
	addr := os.Getenv("E2E_REDIS")
	if addr == "" {
		t.Fatal("E2E_REDIS is not set: give host:port of a redis-server that only tests use")
	}
	var b [4]byte
	rand.Read(b[:])
	return quick(addr, "test-"+hex.EncodeToString(b[:]))
}

func admin(t testing.TB, c Config) *redisconn.Client {
	client := c.dial(new(redisconn.Link), 1)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestConformanceRedis(t *testing.T) { conform(t, func(t *testing.T) Config { return server(t) }) }

func TestFaultsRedis(t *testing.T) { faults(t, server(t)) }

func TestEmptiedRedis(t *testing.T) {
	c := server(t)
	client := admin(t, c)
	emptied(t, c, func() {
		for i := range c.Shards {
			client.Del(t.Context(), response.Mailbox(c.Prefix, "gw", i))
		}
		client.Del(t.Context(), c.Prefix+":gw:gw")
	})
}

func TestTrimmedRedis(t *testing.T) {
	c := server(t)
	client := admin(t, c)
	trimmed(t, c, func(key string) int { return int(client.XLen(t.Context(), key).Val()) })
}

// TestNoMemoryRedis lets Redis refuse writes again and again: what is refused waits,
// and is not overtaken.
func TestNoMemoryRedis(t *testing.T) {
	c := server(t)
	c.GoneAfter = 5 * time.Second
	client := admin(t, c)
	r, w := pair(t, c)
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	limit := func(max string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), "maxmemory", max).Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { client.ConfigSet(context.Background(), "maxmemory", "0") })
	for range 5 {
		limit("1")
		for range 50 {
			st.must()
		}
		eventually(t, "the writer sees the refusal", func() bool { return !w.Ready() })
		limit("0")
		for range 50 {
			st.must()
		}
	}
	s.until(t, "every event", s.has("a", st.seq))
	if s.holes > 0 {
		t.Errorf("%d holes", s.holes)
	}
}

// TestRestartRedis kills a redis-server that writes its log to disk, and starts it
// again on its data.
func TestRestartRedis(t *testing.T) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server is missing: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	var process *exec.Cmd
	start := func() {
		_, port, _ := net.SplitHostPort(addr)
		process = exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", dir, "--logfile", filepath.Join(dir, "log"))
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
	}
	kill := func() { _ = process.Process.Kill(); _ = process.Wait() }
	start()
	t.Cleanup(kill)
	c := quick(addr, "test")
	c.GoneAfter, c.Alive, c.Keep = 5*time.Second, 10*time.Second, time.Minute
	r, w := pair(t, c)
	s := newSeen()
	open(t, r, "gw", s)
	st := &stream{t: t, w: w, reply: r.Address("gw", "a"), id: "a"}
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for range 3 {
		for range 100 {
			<-every.C
			st.must()
		}
		kill()
		for range 300 {
			<-every.C
			st.must()
		}
		start()
	}
	s.until(t, "every event", s.has("a", st.seq))
	if s.holes > 0 {
		t.Errorf("%d holes, though Redis kept what it accepted", s.holes)
	}
	t.Logf("%d events, %d came again", st.seq, s.again)
}

// TestManyStreamsRedis has STREAMS (10,000) open streams of one gateway at a chunk of
// 250 B a second each, written by four agents, for SECONDS (10).
func TestManyStreamsRedis(t *testing.T) {
	number := func(name string, n int) int {
		if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return v
		}
		return n
	}
	streams, seconds := number("STREAMS", 10_000), number("SECONDS", 10)
	c := server(t)
	d := DefaultConfig()
	d.Addr, d.Prefix = c.Addr, c.Prefix
	client := admin(t, d)
	r := newReader(t, d)
	background(t, r.Run)
	s := &clocked{last: map[string]uint64{}, latency: hdrhistogram.New(1, 60e6, 3)}
	closeBox, err := r.Open("gw", s.handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeBox)
	const agents = 4
	var writers sync.WaitGroup
	before, redisBefore := cpu(t), redisCPU(t, client)
	began := time.Now()
	for a := range agents {
		w := newWriter(t, d)
		background(t, w.Run)
		writers.Go(func() { s.write(t, r, w, a, streams/agents, seconds) })
	}
	writers.Wait()
	s.wait(t, streams/agents*agents*seconds)
	took := time.Since(began)
	// This process is the gateway and all agents; CLIENT LIST counts the test's own too.
	conns := strings.Count(client.ClientList(t.Context()).Val(), "\n")
	t.Logf("%d events of %d streams in %.1f s, %d holes; append -> handle p50 %d us, p99 %d us, p99.9 %d us, most %d us; this process %.2f cores, redis %.2f cores; %d connections",
		s.n, streams, took.Seconds(), s.holes, s.latency.ValueAtQuantile(50), s.latency.ValueAtQuantile(99), s.latency.ValueAtQuantile(99.9), s.latency.Max(),
		(cpu(t)-before).Seconds()/took.Seconds(), (redisCPU(t, client)-redisBefore)/took.Seconds(), conns)
	if s.holes > 0 {
		t.Errorf("%d holes", s.holes)
	}
	if conns > 16 {
		t.Errorf("%d connections, want at most 16", conns)
	}
}

// clocked notes how long events take; a payload begins with when it was appended.
type clocked struct {
	mu      sync.Mutex // guards what follows
	last    map[string]uint64
	n       int
	holes   int
	latency *hdrhistogram.Histogram
}

func (s *clocked) handle(e response.Event) {
	sent, _ := strconv.ParseInt(string(e.Payload[:19]), 10, 64)
	took := time.Since(time.Unix(0, sent))
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Seq != s.last[e.ID]+1 {
		s.holes++
	}
	s.last[e.ID] = e.Seq
	s.n++
	_ = s.latency.RecordValue(max(took.Microseconds(), 1))
}

// write spreads one chunk a second of each stream over the second.
func (s *clocked) write(t *testing.T, r *Reader, w *Writer, agent, streams, seconds int) {
	var ws []*response.Writer
	for i := range streams {
		id := fmt.Sprintf("%016x%016x", agent, i)
		ws = append(ws, response.NewWriter(id, id, r.Address("gw", id), w.Append))
	}
	payload := make([]byte, 250)
	began := time.Now()
	for i := range streams * seconds {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(streams))
		if wait := time.Until(due); wait > 0 {
			<-time.After(wait)
		}
		copy(payload, strconv.FormatInt(time.Now().UnixNano(), 10))
		if err := ws[i%streams].Append(response.Event{Kind: response.Chunk, Payload: payload}); err != nil {
			t.Errorf("append: %v", err)
			return
		}
	}
}

func (s *clocked) wait(t *testing.T, n int) {
	for limit := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		s.mu.Lock()
		have := s.n
		s.mu.Unlock()
		if have >= n {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d events arrived, want %d", have, n)
		}
	}
}

func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// redisCPU is what the server has used, in seconds.
func redisCPU(t *testing.T, client *redisconn.Client) float64 {
	var sum float64
	for line := range strings.Lines(client.Info(t.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	return sum
}

// BenchmarkIdleRedis is one event after the other from Append to the mailbox.
func BenchmarkIdleRedis(b *testing.B) {
	c := server(b)
	d := DefaultConfig()
	d.Addr, d.Prefix = c.Addr, c.Prefix
	r, w := pair(b, d)
	came := make(chan struct{}, 1)
	closeBox, err := r.Open("gw", func(response.Event) { came <- struct{}{} })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(closeBox)
	out := response.NewWriter("a", "a", r.Address("gw", "a"), w.Append)
	latency := hdrhistogram.New(1, 60e6, 3)
	for b.Loop() {
		began := time.Now()
		if err := out.Append(response.Event{Kind: response.Chunk, Payload: make([]byte, 250)}); err != nil {
			b.Fatal(err)
		}
		<-came
		_ = latency.RecordValue(max(time.Since(began).Microseconds(), 1))
	}
	b.ReportMetric(float64(latency.ValueAtQuantile(50)), "us-p50")
	b.ReportMetric(float64(latency.ValueAtQuantile(99)), "us-p99")
}
