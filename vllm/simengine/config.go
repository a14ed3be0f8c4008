package simengine

import (
	"errors"
	"fmt"

	"penstock/sim/engine"
)

// Version is the vLLM release whose answers are given.
const Version = "0.32.0"

// Config is one simulated server.
type Config struct {
	Model  string
	Engine engine.Config

	// Seed, prompt and choice decide text and length of an answer. At any
	// temperature but 0 the order of arrival does too, unless the request has a
	// seed of its own.
	Seed uint64

	// BytesPerToken is the tokenizer, both ways: that many bytes are one token.
	BytesPerToken int

	// MeanOutput is the mean of the geometric distribution of lengths after which
	// an answer stops by itself; 0 = never: it always runs to its limit.
	MeanOutput float64

	// MaxBody bounds a request's body in bytes; above it the answer is 413.
	MaxBody int64
}

// DefaultConfig serves a model named sim: 4 bytes per token, as for English text,
// and answers of 99 tokens in the mean, as measured for random weights.
func DefaultConfig() Config {
	return Config{
		Model:         "sim",
		Engine:        engine.DefaultConfig(),
		Seed:          1,
		BytesPerToken: 4,
		MeanOutput:    99,
		MaxBody:       64 << 20,
	}
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Model == "":
		return errors.New("simengine: Model is empty, want a name")
	case c.BytesPerToken < 1 || c.BytesPerToken > 64:
		return fmt.Errorf("simengine: BytesPerToken is %d, want 1..64", c.BytesPerToken)
	case !(c.MeanOutput == 0 || c.MeanOutput >= 1):
		return fmt.Errorf("simengine: MeanOutput is %g, want 0 or at least 1", c.MeanOutput)
	case c.MaxBody < 1:
		return fmt.Errorf("simengine: MaxBody is %d, want at least 1 byte", c.MaxBody)
	}
	return c.Engine.Validate()
}
