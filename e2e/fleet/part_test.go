//go:build e2e

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// part is one process of the fleet; it may be started again with the same arguments.
type part struct {
	name, log string
	binary    string // "" = the one that is tested
	args      []string
	url       string // of its API
	admin     string // of probes and metrics

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan error // size 1, of the process that runs
	turns int        // starts and ends so far: odd = it runs
	up    int        // the last turn in which it said that it is ready
}

func (p *part) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(cmp.Or(p.binary, binary), p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.turns++
	if err := notePid(p.cmd.Process.Pid); err != nil {
		return err
	}
	cmd, ended := p.cmd, make(chan error, 1)
	p.ended = ended
	go func() { ended <- cmd.Wait() }()
	return nil
}

// notePid remembers a process for the sweep of the next run.
func notePid(pid int) error {
	f, err := os.OpenFile(filepath.Join(home, "pids"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, pid)
	return errors.Join(err, f.Close())
}

// sweep ends what an earlier run that was cut short has left, and its data.
func sweep() error {
	pids, _ := os.ReadFile(filepath.Join(home, "pids"))
	for line := range strings.Lines(string(pids)) {
		pid := strings.TrimSpace(line)
		command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if n, err := strconv.Atoi(pid); err == nil && strings.HasPrefix(string(command), binary+"\x00") {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	_ = os.Remove(filepath.Join(home, "pids"))
	_, err := stack("clean")
	if _, running := script("", "scripts/redis", "status"); running == nil {
		_, stopped := script("", "scripts/redis", "stop")
		err = errors.Join(err, stopped)
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(cache, "redis", port(10))))
}

// signal sends s to the process that runs.
func (p *part) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turns%2 == 0 {
		return fmt.Errorf("%s does not run", p.name)
	}
	return p.cmd.Process.Signal(s)
}

// end sends s and waits for the process to end.
func (p *part) end(s syscall.Signal, within time.Duration) error {
	p.mu.Lock()
	if p.turns%2 == 0 {
		p.mu.Unlock()
		return nil
	}
	p.turns++ // before the signal: a request that it cuts finds the process ended
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	if err := cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
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

// turn says whether the process runs and which one it is.
func (p *part) turn() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turns
}

func (p *part) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// ready reports readiness and what the probe says.
func (p *part) ready() (bool, string) {
	status, body, err := get(p.admin + "/readyz")
	if err != nil {
		return false, err.Error()
	}
	if status == http.StatusOK {
		p.mu.Lock()
		p.up = p.turns
		p.mu.Unlock()
	}
	return status == http.StatusOK, body
}

// served says whether the process of that turn has been ready: before, it may not yet
// take connections.
func (p *part) served(turn int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return turn%2 == 1 && p.up == turn
}

func (p *part) awaitReady(within time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		ok, why := p.ready()
		if ok {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not ready after %v: %s", p.name, within, why)
		}
	}
}

// metric sums the series of one name whose line contains all labels.
func (p *part) metric(name string, labels ...string) (float64, error) {
	base := p.admin
	if base == "" {
		base = p.url
	}
	_, page, err := get(base + "/metrics")
	if err != nil {
		return 0, err
	}
	found, sum := false, 0.0
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		found = true
		for _, l := range labels {
			ok = ok && strings.Contains(rest, l)
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if ok && err == nil {
			sum += v
		}
	}
	if !found {
		return 0, fmt.Errorf("%s has no %s", p.name, name)
	}
	return sum, nil
}

var probe = &http.Client{Timeout: 3 * time.Second}

func get(url string) (status int, body string, err error) {
	resp, err := probe.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// stack runs a command of scripts/rocketmq on the stack of these tests.
func stack(words ...string) (string, error) {
	return script("", "scripts/rocketmq/rocketmq.sh", words...)
}

func script(stdin, name string, words ...string) (string, error) {
	cmd := exec.Command(name, words...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(),
		"ROCKETMQ_DIR="+filepath.Join(home, "rocketmq"), "PENSTOCK_CACHE="+cache, "REDIS_PORT="+port(10),
		"RMQ_NAMESRV_PORT="+port(0), "RMQ_BROKER_PORT="+port(3), "RMQ_GRPC_PORT="+port(5), "RMQ_REMOTING_PORT="+port(6))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(words, " "), err, out)
	}
	return string(out), nil
}

// pidFile reads the process of a script's part.
func pidFile(path ...string) (int, error) {
	text, err := os.ReadFile(filepath.Join(append([]string{cache}, path...)...))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func redisPid() (int, error) { return pidFile("redis", port(10), "pid") }

func rocketmqPid(name string) (int, error) { return pidFile("fleet", "rocketmq", "run", name+".pid") }

// killRedis ends it by -9 and returns when its process is gone.
func killRedis() error {
	pid, err := redisPid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for range 500 {
		if syscall.Kill(pid, 0) != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("Redis %d runs after SIGKILL", pid)
}
