package fit

import (
	"fmt"
	"math"
	"time"
)

// Profile is an engine as sim replay takes it, in YAML: world.LoadProfile.
type Profile struct {
	Step              time.Duration `json:"step"`
	PerPrefillToken   time.Duration `json:"per_prefill_token"`
	PerPrefillContext time.Duration `json:"per_prefill_context"`
	PerSequence       time.Duration `json:"per_sequence"`
	PerKVToken        time.Duration `json:"per_kv_token"`
	KVTokens          int           `json:"kv_tokens"`
	BlockSize         int           `json:"block_size"`
	MaxModelLen       int           `json:"max_model_len"`
	MaxSeqs           int           `json:"max_num_seqs"`
	MaxBatchedTokens  int           `json:"max_num_batched_tokens"`
}

// Known is what the caller knows of an engine's limits; 0 = not known.
type Known struct {
	BlockSize        int
	MaxSeqs          int
	MaxBatchedTokens int
}

// vLLM's own defaults, for what could not be seen.
const (
	usualBlock = 16
	usualSeqs  = 256
	usualBatch = 2048
)

// Profile is the engine's profile and a note on each field that was not told by the
// engine or the caller, by the field's name.
func (r *Result) Profile(c *Config, k Known) (p Profile, notes map[string]string) {
	seconds := func(s float64) time.Duration { // to four digits, of which the last says nothing
		ns := math.Round(s * 1e9)
		digit := math.Pow(10, max(math.Floor(math.Log10(max(ns, 1)))-3, 0))
		return time.Duration(math.Round(ns/digit) * digit)
	}
	notes = map[string]string{}
	p = Profile{
		seconds(r.Coefficients[0]), seconds(r.Coefficients[1]), seconds(1000 * r.Coefficients[2]), seconds(r.Coefficients[3]), seconds(r.Coefficients[4]),
		c.KVTokens, k.BlockSize, min(c.MaxModelLen, c.KVTokens), k.MaxSeqs, k.MaxBatchedTokens,
	}
	if p.BlockSize == 0 {
		p.BlockSize, notes["block_size"] = usualBlock, "not told; vLLM's default"
	}
	switch {
	case p.MaxSeqs > 0:
	case r.SeatsFull:
		p.MaxSeqs, notes["max_num_seqs"] = r.Seats, "seen: more were there and did not run"
	default:
		p.MaxSeqs, notes["max_num_seqs"] = max(usualSeqs, r.Seats), fmt.Sprintf("not told; vLLM's default. %d ran at once and none was held back", r.Seats)
	}
	switch {
	case p.MaxBatchedTokens > 0:
	case r.Chunk > 0:
		p.MaxBatchedTokens, notes["max_num_batched_tokens"] = r.Chunk, "seen: longer prompts were computed in several steps"
	default:
		p.MaxBatchedTokens = max(usualBatch, r.LongestWhole)
		notes["max_num_batched_tokens"] = fmt.Sprintf("not told; a prompt of %d tokens was computed in one step", r.LongestWhole)
	}
	if p.MaxBatchedTokens < p.MaxSeqs {
		p.MaxSeqs = p.MaxBatchedTokens // no engine has more
	}
	return p, notes
}

// Errors are the median and the nine-in-ten error of the rows that only decoded, of
// those with a prompt, and of all: each row predicted by a fit without it.
type Errors struct {
	Decode  [2]float64 `json:"decode"`
	Prefill [2]float64 `json:"prefill"`
	All     [2]float64 `json:"all"`
}

// Errors says how good the fit is.
func (r *Result) Errors() Errors {
	var with, without []float64
	for i := range r.Rows {
		if r.Rows[i].Prefill > 0 {
			with = append(with, r.Off[i])
		} else {
			without = append(without, r.Off[i])
		}
	}
	two := func(x []float64) [2]float64 { return [2]float64{quantile(x, 0.5), quantile(x, 0.9)} }
	return Errors{two(without), two(with), two(r.Off)}
}
