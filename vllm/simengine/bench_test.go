package simengine

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkStreams measures 50 streams at 25 ms a step, which is 2,000 tokens/s over
// loopback: the CPU time per token of server and client together.
func BenchmarkStreams(b *testing.B) {
	cfg := testConfig()
	cfg.BytesPerToken = 4
	cfg.Engine.Base = 25 * time.Millisecond
	s, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var ran sync.WaitGroup
	ran.Go(func() { _ = s.Run(ctx) })
	web := httptest.NewServer(s.Handler())
	defer ran.Wait()
	defer web.Close()
	defer cancel()
	for b.Loop() {
		start, cpu := time.Now(), cpuTime()
		var streams sync.WaitGroup
		for range 50 {
			streams.Go(func() {
				body := strings.NewReader(`{"prompt":"hello","max_tokens":40,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
				resp, err := http.Post(web.URL+"/v1/completions", "application/json", body)
				if err != nil {
					b.Error(err)
					return
				}
				defer resp.Body.Close()
				for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
				}
			})
		}
		streams.Wait()
		b.ReportMetric(2000/time.Since(start).Seconds(), "tokens/s")
		b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/2000, "cpu-us/token")
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkPage(b *testing.B) {
	s, err := New(DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Page()
	}
}
