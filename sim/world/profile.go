package world

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"penstock/sim/engine"
)

// Profile is the engines of a simulated world: alike but for their speed.
type Profile struct {
	Name   string
	Speeds []float64 // of each engine; 1 is Engine's own
	Engine engine.Config
}

// Speed is that of all engines together.
func (p *Profile) Speed() (sum float64) {
	for _, s := range p.Speeds {
		sum += s
	}
	return sum
}

// engine is the i-th engine.
func (p *Profile) engine(i int) engine.Config {
	e := p.Engine
	for _, d := range []*time.Duration{&e.Base, &e.PerPrefillToken, &e.PerPrefillContext, &e.PerSeq, &e.PerKVToken} {
		*d = time.Duration(float64(*d) / p.Speeds[i])
	}
	return e
}

// Profiles are the names that LoadProfile knows beside files.
func Profiles() []string { return []string{"kv-bound", "prefill-bound", "tpot-bound", "unequal"} }

// LoadProfile makes a profile of a name or of a YAML file. The names are vLLM's
// defaults (256 sequences, 2,048 tokens a step, blocks of 16, full-prompt gate) on
// coefficients from published profiles: an 8B model on an A100 with 80 GB of which
// 160k KV tokens are left (Vidur's Meta-Llama-3-8B: 9.7 ms a step, 66 us per prefill
// token; 128 KiB per KV token at 70 % of 2 TB/s is 94 ns); the same on an H200-like
// GPU with 800k; a 70B model on eight A100s, whose steps of 45 ms and 120 us per
// prefill token (Splitwise's measurements) leave little of 100 ms per token; and the first one beside another at 0.4 of its speed.
func LoadProfile(name string) (*Profile, error) {
	p := &Profile{Name: name, Speeds: []float64{1}, Engine: engine.DefaultConfig()}
	e := &p.Engine
	e.MaxModelLen = 131_072
	switch name {
	case "kv-bound", "unequal":
		if name == "unequal" {
			p.Speeds = []float64{1, 0.4}
		}
		e.Blocks = 160_000/e.BlockSize + 1
		e.Base, e.PerPrefillToken, e.PerSeq, e.PerKVToken = 10*time.Millisecond, 66*time.Microsecond, 40*time.Microsecond, 94*time.Nanosecond
	case "prefill-bound":
		e.Blocks = 800_000/e.BlockSize + 1
		e.Base, e.PerPrefillToken, e.PerSeq, e.PerKVToken = 5*time.Millisecond, 24*time.Microsecond, 30*time.Microsecond, 39*time.Nanosecond
	case "tpot-bound":
		e.Blocks = 1_000_000/e.BlockSize + 1
		e.Base, e.PerPrefillToken, e.PerSeq, e.PerKVToken = 45*time.Millisecond, 120*time.Microsecond, 300*time.Microsecond, 29*time.Nanosecond
	default:
		if err := p.read(name); err != nil {
			return nil, err
		}
	}
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}

// read fills p from a file, which may leave out what it does not change.
func (p *Profile) read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("no profile and no readable file %q (%w): give a YAML file or one of %v", name, err, Profiles())
	}
	e := &p.Engine
	file := struct {
		Engines           int           `yaml:"engines"`
		Speeds            []float64     `yaml:"speeds"`
		KVTokens          int           `yaml:"kv_tokens"`
		BlockSize         int           `yaml:"block_size"`
		MaxModelLen       int           `yaml:"max_model_len"`
		MaxSeqs           int           `yaml:"max_num_seqs"`
		MaxBatchedTokens  int           `yaml:"max_num_batched_tokens"`
		Step              time.Duration `yaml:"step"`
		PerPrefillToken   time.Duration `yaml:"per_prefill_token"`
		PerPrefillContext time.Duration `yaml:"per_prefill_context"`
		PerSequence       time.Duration `yaml:"per_sequence"`
		PerKVToken        time.Duration `yaml:"per_kv_token"`
	}{
		1, nil, e.Capacity(), e.BlockSize, 0, e.MaxSeqs, e.MaxBatchedTokens,
		e.Base, e.PerPrefillToken, e.PerPrefillContext, e.PerSeq, e.PerKVToken,
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil {
		return fmt.Errorf("profile %s: %w", name, err)
	}
	if file.Engines < 1 || file.Engines > 64 || file.BlockSize < 1 || file.KVTokens < file.BlockSize {
		return fmt.Errorf("profile %s: engines %d, block_size %d, kv_tokens %d; set 1 to 64 engines and at least one block of tokens", name, file.Engines, file.BlockSize, file.KVTokens)
	}
	if p.Speeds = file.Speeds; len(p.Speeds) == 0 {
		p.Speeds = slices.Repeat([]float64{1}, file.Engines)
	}
	if len(p.Speeds) > 64 || slices.ContainsFunc(p.Speeds, func(s float64) bool { return !(s >= 0.01 && s <= 100) }) {
		return fmt.Errorf("profile %s: speeds %v; set 0.01 to 100 for each of at most 64 engines", name, p.Speeds)
	}
	e.Blocks, e.BlockSize = file.KVTokens/file.BlockSize+1, file.BlockSize
	e.MaxModelLen = file.MaxModelLen
	if e.MaxModelLen == 0 {
		e.MaxModelLen = min(131_072, e.Capacity())
	}
	e.MaxSeqs, e.MaxBatchedTokens = file.MaxSeqs, file.MaxBatchedTokens
	e.Base, e.PerPrefillToken, e.PerPrefillContext = file.Step, file.PerPrefillToken, file.PerPrefillContext
	e.PerSeq, e.PerKVToken = file.PerSequence, file.PerKVToken
	return nil
}
