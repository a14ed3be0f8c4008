package engine

import (
	"fmt"
	"time"
)

// Config is one engine: its KV pool, the limits of one step, the rules of
// admission and the cost of a step.
type Config struct {
	Blocks      int // KV blocks in the pool, the unusable null block included
	BlockSize   int // tokens per block
	MaxModelLen int // longest prompt + output of one sequence, tokens

	// Tokens of each of Request.Prefix's ids, a multiple of BlockSize; 0 = no prefix
	// cache (--no-enable-prefix-caching).
	PrefixTokens int

	MaxSeqs          int // sequences running at once
	MaxBatchedTokens int // tokens computed in one step

	FullPromptGate  bool    // admit a waiting sequence only if its whole prompt fits in free blocks
	Watermark       float64 // fraction of the pool that stays free when a waiting sequence is admitted, 0..1
	MaxQueuedReqs   int     // sequences in flight beyond which Submit refuses; 0 = no limit
	MaxQueuedTokens int     // prompt tokens without a first token beyond which Submit refuses; 0 = no limit

	// A step takes Base + PerPrefillToken x prefill tokens + PerSeq x decoding
	// sequences + PerKVToken x tokens held in the KV cache + PerPrefillContext x the
	// thousands of tokens before each prefill token in its sequence, to which it attends.
	Base              time.Duration
	PerPrefillToken   time.Duration
	PerPrefillContext time.Duration
	PerSeq            time.Duration
	PerKVToken        time.Duration
}

// DefaultConfig is an 8B model in 16 bit on an 80 GB A100 by arithmetic: 16 GB of
// weights read at 2 TB/s is 8 ms a step (2 ms of overhead added), 16 GFLOP per
// token at 160 TFLOP/s is 100 us, 128 KiB of KV per token is 64 ns. The limits are
// vLLM's own defaults; the pool is 64k tokens.
func DefaultConfig() Config {
	return Config{
		Blocks:           4097,
		BlockSize:        16,
		MaxModelLen:      8192,
		MaxSeqs:          256,
		MaxBatchedTokens: 2048,
		FullPromptGate:   true,
		Base:             10 * time.Millisecond,
		PerPrefillToken:  100 * time.Microsecond,
		PerSeq:           30 * time.Microsecond,
		PerKVToken:       64 * time.Nanosecond,
	}
}

// Capacity is the number of tokens the pool can hold: the null block never holds any.
func (c Config) Capacity() int { return (c.Blocks - 1) * c.BlockSize }

// Validate refuses what vLLM would refuse at start, and what could never make
// progress.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
		min   int
	}{
		{"Blocks", c.Blocks, 2},
		{"BlockSize", c.BlockSize, 1},
		{"MaxModelLen", c.MaxModelLen, 1},
		{"MaxSeqs", c.MaxSeqs, 1},
		{"MaxBatchedTokens", c.MaxBatchedTokens, 1},
		{"PrefixTokens", c.PrefixTokens, 0},
		{"MaxQueuedReqs", c.MaxQueuedReqs, 0},
		{"MaxQueuedTokens", c.MaxQueuedTokens, 0},
		{"Base", int(c.Base), 0},
		{"PerPrefillToken", int(c.PerPrefillToken), 0},
		{"PerPrefillContext", int(c.PerPrefillContext), 0},
		{"PerSeq", int(c.PerSeq), 0},
		{"PerKVToken", int(c.PerKVToken), 0},
	} {
		if f.value < f.min {
			return fmt.Errorf("engine: %s is %d, want at least %d", f.name, f.value, f.min)
		}
	}
	if c.MaxModelLen > c.Capacity() {
		return fmt.Errorf("engine: MaxModelLen is %d, want at most (Blocks-1) x BlockSize = %d", c.MaxModelLen, c.Capacity())
	}
	if c.PrefixTokens%c.BlockSize != 0 {
		return fmt.Errorf("engine: PrefixTokens is %d, want a multiple of BlockSize = %d", c.PrefixTokens, c.BlockSize)
	}
	if c.MaxBatchedTokens < c.MaxSeqs {
		return fmt.Errorf("engine: MaxBatchedTokens is %d, want at least MaxSeqs = %d", c.MaxBatchedTokens, c.MaxSeqs)
	}
	if !(c.Watermark >= 0 && c.Watermark < 1) {
		return fmt.Errorf("engine: Watermark is %g, want 0 <= Watermark < 1", c.Watermark)
	}
	return nil
}
