package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// row is one round of one part.
type row struct {
	plainP50, plainP99 time.Duration // one client, plain answers
	firstP50           time.Duration // one client, to the first token of a stream, less the stub's 2 ms
	tokenP50, tokenP99 time.Duration // from the engine's write to the client's read
	perSecond          float64       // with all clients, plain answers
	cpuPerRequest      time.Duration // of the part's own process, in the throughput figure
	rss                int           // MiB, after the round
}

func (p *part) measure(requests, clients int, span time.Duration) error {
	transport := &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	address := "http://" + p.address + "/v1/completions"
	var r row

	times := make([]time.Duration, 0, requests)
	for i := range requests + requests/10 {
		begin := time.Now()
		if err := plain(client, address); err != nil {
			return err
		}
		if i >= requests/10 {
			times = append(times, time.Since(begin))
		}
	}
	r.plainP50, r.plainP99 = quantile(times, .5), quantile(times, .99)

	var first, tokens []time.Duration
	for range 20 {
		f, t, err := stream(client, address)
		if err != nil {
			return err
		}
		first, tokens = append(first, f-2*time.Millisecond), append(tokens, t...)
	}
	r.firstP50, r.tokenP50, r.tokenP99 = quantile(first, .5), quantile(tokens, .5), quantile(tokens, .99)

	before, err := p.cpu()
	if err != nil {
		return err
	}
	var done atomic.Int64
	var failed atomic.Value
	var wg sync.WaitGroup
	end := time.Now().Add(span)
	for range clients {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := plain(client, address); err != nil {
					failed.Store(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err, ok := failed.Load().(error); ok {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	r.perSecond = float64(done.Load()) / span.Seconds()
	r.cpuPerRequest = (after - before) / time.Duration(max(1, done.Load()))
	if r.rss, err = p.rss(); err != nil {
		return err
	}
	p.rows = append(p.rows, r)
	return nil
}

func plain(client *http.Client, address string) error {
	resp, err := client.Post(address, "application/json", strings.NewReader(plainBody))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return err
}

// stream reads one stream: the time to its first token and each token's way.
func stream(client *http.Client, address string) (first time.Duration, tokens []time.Duration, err error) {
	begin := time.Now()
	resp, err := client.Post(address, "application/json", strings.NewReader(streamBody))
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		_, text, found := bytes.Cut(lines.Bytes(), []byte(`"text":"`))
		if !found {
			continue
		}
		now := time.Now()
		digits, _, _ := bytes.Cut(text, []byte(`"`))
		sent, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return 0, nil, err
		}
		tokens = append(tokens, time.Duration(now.UnixNano()-sent))
		if len(tokens) == 1 {
			first = now.Sub(begin)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, nil, err
	}
	if len(tokens) != streamTokens {
		return 0, nil, fmt.Errorf("%d of %d tokens came", len(tokens), streamTokens)
	}
	return first, tokens, nil
}

// cpu is the processor time of the part's process: utime and stime, in the
// kernel's ticks of 10 ms.
func (p *part) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("cannot read %q", text)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

func (p *part) rss() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			return kib >> 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS of process %d", p.cmd.Process.Pid)
}

func report(w io.Writer, parts []*part) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "part\tplain p50\tplain p99\tfirst token p50\ttoken p50\ttoken p99\trequests/s\tCPU/request\tRSS")
	for _, p := range parts {
		for _, r := range p.rows {
			fmt.Fprintf(table, "%s\t%v\t%v\t%v\t%v\t%v\t%.0f\t%v\t%d MiB\n", p.name, us(r.plainP50), us(r.plainP99), us(r.firstP50),
				us(r.tokenP50), us(r.tokenP99), r.perSecond, us(r.cpuPerRequest), r.rss)
		}
	}
	_ = table.Flush()
}

func us(d time.Duration) time.Duration { return d.Round(time.Microsecond) }

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}
