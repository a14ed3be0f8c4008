package fit

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProfile(t *testing.T) {
	cfg := config()
	found := Coefficients{14.254487e-3, 53.783e-6, 4.2378e-9, 70.524e-6, 94.4e-9}
	step := Profile{14250 * time.Microsecond, 53780 * time.Nanosecond, 4238 * time.Nanosecond, 70520 * time.Nanosecond, 94, 40_000, 0, 9000, 0, 0}
	with := func(change func(*Profile)) Profile { p := step; change(&p); return p }
	for _, c := range []struct {
		name   string
		result Result
		known  Known
		want   Profile
		notes  []string // fields and words of their notes
	}{
		{
			"all told",
			Result{Seats: 64, Chunk: 512},
			Known{32, 128, 1024},
			with(func(p *Profile) { p.BlockSize, p.MaxSeqs, p.MaxBatchedTokens = 32, 128, 1024 }), nil,
		},
		{
			"all seen",
			Result{Seats: 24, SeatsFull: true, Chunk: 512, LongestWhole: 256},
			Known{},
			with(func(p *Profile) { p.BlockSize, p.MaxSeqs, p.MaxBatchedTokens = 16, 24, 512 }),
			[]string{"block_size", "not told", "max_num_seqs", "seen", "max_num_batched_tokens", "seen"},
		},
		{
			"nothing seen",
			Result{Seats: 64, LongestWhole: 8000},
			Known{BlockSize: 16},
			with(func(p *Profile) { p.BlockSize, p.MaxSeqs, p.MaxBatchedTokens = 16, 256, 8000 }),
			[]string{"max_num_seqs", "64 ran at once", "max_num_batched_tokens", "8000 tokens"},
		},
		{
			"steps smaller than seats",
			Result{Seats: 64, Chunk: 128},
			Known{BlockSize: 16},
			with(func(p *Profile) { p.BlockSize, p.MaxSeqs, p.MaxBatchedTokens = 16, 128, 128 }),
			[]string{"max_num_seqs", "not told", "max_num_batched_tokens", "seen"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.result.Coefficients = found
			got, notes := c.result.Profile(&cfg, c.known)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("profile, -want +got:\n%s", diff)
			}
			if len(notes) != len(c.notes)/2 {
				t.Errorf("notes %q, want %d", notes, len(c.notes)/2)
			}
			for i := 0; i < len(c.notes); i += 2 {
				if !strings.Contains(notes[c.notes[i]], c.notes[i+1]) {
					t.Errorf("note on %s: %q, want %q in it", c.notes[i], notes[c.notes[i]], c.notes[i+1])
				}
			}
		})
	}
}

func TestChunk(t *testing.T) {
	for _, c := range []struct {
		name        string
		cuts        []cut
		size, whole int
	}{
		{"none cut", []cut{{256, 1, 1}, {4096, 1, 1}}, 0, 4096},
		{"a power of two", []cut{{256, 1, 1}, {2048, 1, 2}, {4096, 4, 4}, {8072, 1, 8}}, 1024, 256},
		{"one seen wrongly", []cut{{1024, 1, 1}, {2048, 1, 2}, {4096, 4, 2}, {8072, 1, 8}}, 1024, 1024},
		{"no power of two", []cut{{3000, 0, 2}, {6000, 0, 4}, {7500, 0, 5}}, 1500, 0},
	} {
		s := &sweep{cuts: c.cuts}
		if size, whole := s.chunk(); size != c.size || whole != c.whole {
			t.Errorf("%s: got steps of %d, %d whole; want %d, %d", c.name, size, whole, c.size, c.whole)
		}
	}
}
