//go:build e2e

package gossip

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	penstockv1 "penstock/proto/penstock/v1"
)

// process is a program on a host; it may be started again.
type process struct {
	name string
	host int
	args []string
	log  string

	mu    sync.Mutex
	cmd   *exec.Cmd  // nil = does not run
	ended chan error // size 1
	began time.Time  // of the process that runs
}

func newProcess(name string, host int, args ...string) *process {
	p := &process{name: name, host: host, args: args, log: filepath.Join(home, name+".log")}
	_ = os.Remove(p.log)
	return p
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd, ended := exec.Command(penstock, p.args...), make(chan error, 1)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, home // no configuration of the machine's
	if err := inside(p.host, cmd.Start); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.ended, p.began = cmd, ended, time.Now()
	go func() { ended <- cmd.Wait() }()
	return note(p, cmd.Process.Pid)
}

// end sends s and waits for the process to end; nothing runs afterwards.
func (p *process) end(s syscall.Signal, within time.Duration) error {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.cmd = nil
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: %w; its log is %s", p.name, err, p.log)
	}
	select {
	case err := <-ended:
		if s == syscall.SIGKILL {
			return nil
		}
		return err
	case <-time.After(within):
		return errors.Join(fmt.Errorf("%s runs %v after %v", p.name, within, s), cmd.Process.Kill())
	}
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// usage is the CPU time of the process's threads, to the nanosecond, and its memory.
func (p *process) usage() (cpu time.Duration, rss int, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid()))
	if err != nil || len(threads) == 0 {
		return 0, 0, fmt.Errorf("%s has no threads: %w", p.name, err)
	}
	for _, path := range threads {
		stat, _ := os.ReadFile(path) // a thread that ended takes its time along
		var ran int64
		_, _ = fmt.Sscan(string(stat), &ran)
		cpu += time.Duration(ran)
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid()))
	if err != nil {
		return 0, 0, err
	}
	var pages int
	_, err = fmt.Sscan(string(statm), new(int), &pages)
	return cpu, pages * os.Getpagesize(), err
}

// node is an agent or a gateway.
type node struct {
	process
	agent bool
	admin string // of /debug/state and /metrics, as its host sees it
	keys  string // its key file

	http *http.Client
	grpc *grpc.ClientConn
}

// newNode starts nothing. Engines are at port 8000 of an agent's host, where one runs.
func newNode(name string, host int, agent bool, every time.Duration) (*node, error) {
	n := &node{agent: agent, keys: filepath.Join(home, name+".keys")}
	args := []string{"gateway", "--gossip", address(host) + ":4786"}
	n.admin = "http://127.0.0.1:4785"
	if agent {
		args = []string{"agent", "--node", name, "--gossip", address(host) + ":4783", "--gossip-interval", every.String(), "--nvml", "off"}
		n.admin = "http://127.0.0.1:4782"
	}
	args = append(args, "--gossip-key-file", n.keys, "--join", address(1)+":4783,"+address(2)+":4783",
		"--rocketmq", address(backends)+":8081", "--redis", address(backends)+":6379")
	p := newProcess(name, host, args...)
	n.name, n.host, n.args, n.log = p.name, p.host, p.args, p.log
	n.http = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, to string) (net.Conn, error) { return dial(ctx, host, to) }}}
	var err error
	n.grpc, err = grpc.NewClient("passthrough:///127.0.0.1:4781", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dial(ctx, host, to) }))
	if err != nil {
		return nil, err
	}
	return n, n.setKeys(first)
}

// Keys of the fleet, old and new, and another fleet's.
const (
	first  = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	second = "YWFhYWFhYWFhYWFhYWFhYWJiYmJiYmJiYmJiYmJiYmI="
	alien  = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
)

func (n *node) setKeys(keys ...string) error {
	if err := os.WriteFile(n.keys, []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	if pid := n.pid(); pid != 0 {
		return syscall.Kill(pid, syscall.SIGHUP)
	}
	return nil
}

func (n *node) get(url string) (io.ReadCloser, error) {
	resp, err := n.http.Get(url)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: GET %s: %s", n.name, url, resp.Status)
	}
	return resp.Body, nil
}

// engine is the page of the engine on an agent's host.
const engine = "http://127.0.0.1:8000"

// metric sums the series of a name whose labels contain all of with.
func (n *node) metric(name string, with ...string) (float64, error) {
	return n.metricAt(n.admin, name, with...)
}

func (n *node) metricAt(base, name string, with ...string) (sum float64, err error) {
	body, err := n.get(base + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	found := false
	lines := bufio.NewScanner(body)
next:
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		for _, w := range with {
			if !strings.Contains(rest, w) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if err := lines.Err(); err != nil || found {
		return sum, err
	}
	return 0, fmt.Errorf("%s: no series %s %v", n.name, name, with)
}

// view is what a node knows of an engine by its row.
type view struct {
	state string
	age   time.Duration
	kv    float64
	local bool
}

// counts says whether the row takes part in anything.
func (v view) counts() bool { return v.state != "" && v.age <= time.Second }

// open says whether others may count on the engine: on a busy machine a page of it comes
// late now and then, and its agent says so.
func (v view) open() bool { return v.counts() && (v.state == "ok" || v.state == "stale") }

// views are what the node knows of all engines that it has rows of.
func (n *node) views() (map[string]view, error) {
	if n.agent {
		return n.cluster()
	}
	body, err := n.get(n.admin + "/debug/state")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	var doc struct {
		Gateway struct {
			Engines []struct {
				Node string
				Row  *struct {
					State string
					Age   float64 `json:"age_seconds"`
					KV    float64 `json:"kv_usage_ratio"`
				}
			}
		}
	}
	if err := json.NewDecoder(body).Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	all := map[string]view{}
	for _, e := range doc.Gateway.Engines {
		if e.Row != nil {
			all[e.Node] = view{state: e.Row.State, age: seconds(e.Row.Age), kv: e.Row.KV}
		}
	}
	return all, nil
}

func (n *node) cluster() (map[string]view, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, err := penstockv1.NewAgentServiceClient(n.grpc).Cluster(ctx, &penstockv1.ClusterRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	all := map[string]view{}
	for _, e := range answer.GetEngines() {
		all[e.GetNode()] = view{state: e.GetCondition(), age: seconds(e.GetAgeSeconds()), kv: e.GetKvUsage(), local: e.GetLocal()}
	}
	return all, nil
}

// order drains the node's engine or ends that.
func (n *node) order(drain bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	agent := penstockv1.NewAgentServiceClient(n.grpc)
	var err error
	if drain {
		_, err = agent.Drain(ctx, &penstockv1.DrainRequest{})
	} else {
		_, err = agent.Resume(ctx, &penstockv1.ResumeRequest{})
	}
	return err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
