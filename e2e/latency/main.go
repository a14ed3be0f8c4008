// Command latency measures what penstock adds to a request, beside a plain
// httputil.ReverseProxy, in front of a stub engine that answers at once. Each part
// is a process of its own, so that processor time and memory are each one's own.
//
//	go build -o bin/penstock ./cmd/penstock && go run ./e2e/latency
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

func run() error {
	role := flag.String("role", "", "engine or proxy: run only that part (used by the program itself)")
	listen := flag.String("listen", "", "address of the part")
	target := flag.String("target", "", "what the proxy proxies to")
	binary := flag.String("penstock", "bin/penstock", "the binary to measure")
	requests := flag.Int("n", 4000, "requests per latency figure")
	clients := flag.Int("clients", 32, "clients of the throughput figure")
	span := flag.Duration("span", 5*time.Second, "length of the throughput figure")
	rounds := flag.Int("rounds", 3, "rounds; every part is measured in every round")
	flag.Parse()
	switch *role {
	case "engine":
		return (&http.Server{Addr: *listen, Handler: stub(), ReadHeaderTimeout: time.Second}).ListenAndServe()
	case "proxy":
		u, err := url.Parse(*target)
		if err != nil {
			return err
		}
		proxy := httputil.NewSingleHostReverseProxy(u)
		proxy.FlushInterval = -1
		proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
		return (&http.Server{Addr: *listen, Handler: proxy, ReadHeaderTimeout: time.Second}).ListenAndServe()
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	parts := []*part{{name: "direct"}, {name: "ReverseProxy"}, {name: "penstock"}}
	for _, p := range parts {
		if p.address, err = free(); err != nil {
			return err
		}
	}
	admin, err := free()
	if err != nil {
		return err
	}
	engine := "http://" + parts[0].address
	for i, args := range [][]string{
		{self, "-role", "engine", "-listen", parts[0].address},
		{self, "-role", "proxy", "-listen", parts[1].address, "-target", engine},
		{*binary, "standalone", "--engine", engine, "--listen", parts[1+1].address, "--admin", admin, "--grpc", "127.0.0.1:0", "--log-level", "warn"},
	} {
		if err := parts[i].start(ctx, args); err != nil {
			return err
		}
		defer parts[i].stop()
	}
	for _, p := range parts {
		if err := p.wait(10 * time.Second); err != nil {
			return err
		}
	}
	for range *rounds {
		for _, p := range parts {
			if err := p.measure(*requests, *clients, *span); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	report(os.Stdout, parts)
	return nil
}

// part is one process under measurement.
type part struct {
	name, address string
	cmd           *exec.Cmd
	rows          []row
}

func (p *part) start(ctx context.Context, args []string) error {
	p.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	p.cmd.Stderr = os.Stderr
	return p.cmd.Start()
}

func (p *part) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	_ = p.cmd.Wait()
}

// wait returns once a request is answered with 200.
func (p *part) wait(within time.Duration) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Post("http://"+p.address+"/v1/completions", "application/json", strings.NewReader(plainBody))
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Since(begin) > within {
			return fmt.Errorf("%s does not answer on %s after %v: %w", p.name, p.address, within, err)
		}
	}
}

func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

const (
	streamTokens = 200
	plainBody    = `{"model":"stub","prompt":"Hello, how are you today?","max_tokens":8}`
	streamBody   = `{"model":"stub","prompt":"Hello, how are you today?","max_tokens":200,"stream":true}`
)

// stub is an engine that answers at once; a stream's tokens come every 2 ms and
// carry the time they were sent.
func stub() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"stub","object":"model","max_model_len":8192}]}`)
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := bufio.NewReader(r.Body).ReadString('}')
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !strings.Contains(body, `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"id":"cmpl-1","object":"text_completion","model":"stub","choices":[{"index":0,"text":"abcdefgh","finish_reason":"length"}],"usage":{"prompt_tokens":7,"total_tokens":15,"completion_tokens":8}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		flush := http.NewResponseController(w)
		next := time.Now()
		for range streamTokens {
			next = next.Add(2 * time.Millisecond)
			time.Sleep(time.Until(next))
			fmt.Fprintf(w, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"model\":\"stub\",\"choices\":[{\"index\":0,\"text\":\"%d\",\"logprobs\":null,\"finish_reason\":null}]}\n\n", time.Now().UnixNano())
			_ = flush.Flush()
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	return mux
}

const page = `vllm:num_requests_running{engine="0",model_name="stub"} 0.0
vllm:num_requests_waiting{engine="0",model_name="stub"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="stub"} 0.0
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="1600016",num_gpu_blocks="100001"} 1.0
`
