// Package traces is who sends requests, when and of which lengths: recorded traces, and
// the workloads that are made of those that come with the program.
package traces

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	mostTokens = 1 << 24              // of one request, prompt or output; more is a damaged file
	mostSpan   = 366 * 24 * time.Hour // so that a trace played over and over does not overflow
	mostTime   = 10 * 365 * 24 * time.Hour
	mostLine   = 1 << 20         // bytes of one line of jsonl
	mostSpread = 3 * time.Second // the step of Mooncake's conversation stamps
)

// PrefixPart is how many tokens each of Mooncake's hash ids stands for.
const PrefixPart = 512

// Request is one line of a trace.
type Request struct {
	At     time.Duration // since the first request
	Prompt int           // tokens
	Output int           // tokens
	Prefix []uint64      // ids of the prompt's parts of PrefixPart tokens; nil = not known
}

// Trace is requests in the order of their arrival, the first at 0.
type Trace []Request

// span is from the first to the last arrival.
func (t Trace) span() time.Duration { return t[len(t)-1].At }

// Read takes a trace in one of the usual forms: CSV with a header that names its
// columns (Azure's TIMESTAMP, ContextTokens, GeneratedTokens; BurstGPT's Timestamp,
// Request tokens, Response tokens) or JSON lines with timestamp in milliseconds,
// input_length and output_length and, where known, hash_ids for each 512 tokens of the
// prompt (Mooncake; more ids than that are of other parts and are left out). Requests
// without output tokens are failures and are left out. One wrong line makes the
// whole file wrong; the error names it.
func Read(r io.Reader) (Trace, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	first, err := in.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("trace: %w", err)
	}
	read := readCSV
	if len(first) == 1 && first[0] == '{' {
		read = readLines
	}
	t, err := read(in)
	if err != nil {
		return nil, fmt.Errorf("trace %w", err)
	}
	if len(t) < 2 {
		return nil, fmt.Errorf("trace: %d requests, want at least 2", len(t))
	}
	slices.SortStableFunc(t, func(a, b Request) int { return int(max(min(a.At-b.At, 1), -1)) })
	start := t[0].At
	for i := range t {
		t[i].At -= start
	}
	switch span := t.span(); {
	case span == 0:
		return nil, errors.New("trace: all requests arrive at one time")
	case span > mostSpan:
		return nil, fmt.Errorf("trace: from the first to the last request are %v, want at most %v", span, mostSpan)
	}
	spread(t)
	return t, nil
}

// readCSV finds the columns by the header's names, in any case.
func readCSV(r io.Reader) (t Trace, err error) {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("line 1: no header: %w", err)
	}
	column := func(names ...string) int {
		return slices.IndexFunc(header, func(h string) bool { return slices.Contains(names, strings.ToLower(strings.TrimSpace(h))) })
	}
	at, prompt, output := column("timestamp"), column("contexttokens", "request tokens"), column("generatedtokens", "response tokens")
	if at < 0 || prompt < 0 || output < 0 {
		return nil, fmt.Errorf("line 1: the header is %q, want TIMESTAMP,ContextTokens,GeneratedTokens", strings.Join(header, ","))
	}
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err // csv names the line
		}
		line, _ := in.FieldPos(0)
		stamp, err := parseStamp(row[at])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		p, errP := strconv.Atoi(strings.TrimSpace(row[prompt]))
		o, errO := strconv.Atoi(strings.TrimSpace(row[output]))
		if errP != nil || errO != nil {
			return nil, fmt.Errorf("line %d: lengths %q and %q, want whole numbers", line, row[prompt], row[output])
		}
		if t, err = add(t, Request{At: stamp, Prompt: p, Output: o}); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// parseStamp reads a wall clock with or without a zone, or seconds.
func parseStamp(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		if !(seconds >= 0 && seconds < mostTime.Seconds()) {
			return 0, fmt.Errorf("timestamp %q is out of range", s)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00"} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.Sub(time.Unix(0, 0)), nil // saturates; add refuses what does
		}
	}
	return 0, fmt.Errorf("timestamp %q, want 2023-11-16 18:17:03.979 or seconds", s)
}

// readLines reads JSON lines.
func readLines(r io.Reader) (t Trace, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mostLine)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var row struct {
			Timestamp *float64 `json:"timestamp"`
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Prefix    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if row.Timestamp == nil || row.Input == nil || row.Output == nil {
			return nil, fmt.Errorf("line %d: want timestamp, input_length and output_length", n)
		}
		if !(*row.Timestamp >= 0 && *row.Timestamp < float64(mostTime.Milliseconds())) {
			return nil, fmt.Errorf("line %d: timestamp %g is out of range", n, *row.Timestamp)
		}
		if (len(row.Prefix)-1)*PrefixPart >= *row.Input {
			row.Prefix = nil
		}
		if t, err = add(t, Request{time.Duration(*row.Timestamp * float64(time.Millisecond)), *row.Input, *row.Output, row.Prefix}); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("after %d requests: %w", len(t), err)
	}
	return t, nil
}

func add(t Trace, r Request) (Trace, error) {
	if r.At < 0 || r.At == math.MaxInt64 {
		return nil, errors.New("timestamp is out of range")
	}
	if r.Prompt < 0 || r.Output < 0 || r.Prompt > mostTokens || r.Output > mostTokens {
		return nil, fmt.Errorf("lengths %d and %d, want 0 to %d", r.Prompt, r.Output, mostTokens)
	}
	if r.Output == 0 {
		return t, nil
	}
	r.Prompt = max(r.Prompt, 1)
	return append(t, r), nil
}

// spread sets the requests of one stamp evenly over the time to the next one, at
// most over three seconds: some traces are stamped in such steps.
func spread(t Trace) {
	for i := 0; i < len(t); {
		k := i + 1
		for k < len(t) && t[k].At == t[i].At {
			k++
		}
		step := mostSpread
		if k < len(t) {
			step = min(step, t[k].At-t[i].At)
		}
		for j := i + 1; j < k; j++ {
			t[j].At += step * time.Duration(j-i) / time.Duration(k-i)
		}
		i = k
	}
}
