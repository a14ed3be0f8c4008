package scraper

import (
	"bytes"
	"context"
	"slices"
)

// Report is how an engine's metrics page reads.
type Report struct {
	Found    []string // names read, as the page has them
	Renamed  []string // those of Found that are an older name of their signal
	Missing  []string // newest names of the optional signals that are not there
	Ranks    int      // engines (data-parallel ranks) on the page
	KVTokens int      // what their KV caches hold together; 0 = not told
	Refused  int      // requests that the engine's own queue limits refused so far; -1 = it counts none
	Bytes    int      // of the whole page
	Filtered int      // bytes of the page of only our names; 0 = the engine serves none
}

// Inspect reads cfg's page once whole and once filtered. ctx bounds both. Its errors
// are *Error, or say that cfg cannot be used. The doctor calls it.
func Inspect(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	c := newClient(cfg)
	defer c.http.CloseIdleConnections()
	var read reading
	full, err := c.fetch(ctx, false)
	if err != nil {
		return Report{}, err
	}
	v, err := read.page(full)
	if err != nil {
		return Report{}, err
	}
	r := Report{Ranks: v.ranks, KVTokens: v.capacity(), Refused: refused(full.body), Bytes: len(full.body)}
	r.Found, r.Missing = v.names()
	for f := range table {
		if a := v.alias[f]; a > 0 {
			r.Renamed = append(r.Renamed, table[f].names[a])
		}
	}
	if part, err := c.fetch(ctx, true); err == nil {
		if w, err := read.page(part); err == nil && w.replaces(&v, len(part.body), r.Bytes) {
			r.Filtered = len(part.body)
		}
	}
	return r, nil
}

// refused adds up what the engine's own limits refused; -1 if the page does not say.
func refused(body []byte) int {
	sum := -1
	for line := range bytes.Lines(body) {
		if !bytes.HasPrefix(line, []byte("vllm:admission_rejections_total{")) {
			continue
		}
		line = bytes.TrimSpace(line)
		if v, ok := number(line[bytes.LastIndexByte(line, ' ')+1:]); ok && v >= 0 && v < maxRequests {
			sum = max(sum, 0) + int(v)
		}
	}
	return sum
}

// names are those found on the page, and the newest of the optional ones that are not.
func (v *values) names() (found, missing []string) {
	for f := range table {
		if a := v.alias[f]; a >= 0 {
			found = append(found, table[f].names[a])
		}
	}
	for f := range table {
		if v.alias[f] < 0 && !slices.Contains(found, table[f].names[0]) {
			missing = append(missing, table[f].names[0])
		}
	}
	return slices.Compact(found), slices.Compact(missing)
}

// capacity is how many tokens the KV cache holds; 0 = not told.
func (v *values) capacity() int {
	if v.alias[kvTokens] < 0 {
		return int(v.of[kvBlocks])
	}
	return int(v.of[kvTokens])
}

// replaces reports whether the filtered page read as v stands for the full one.
func (v *values) replaces(full *values, length, fullLength int) bool {
	return length <= fullLength/2 && v.alias == full.alias && v.ranks == full.ranks
}
