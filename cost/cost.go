// Package cost prices a request before it runs: prompt tokens from its bytes and
// output tokens from what requests of its class produced. Pure and not safe for
// concurrent use; the gateway holds a mutex around it.
package cost

import (
	"fmt"
	"math"

	"penstock/lane"
)

// Class is requests that answer at about the same length.
type Class struct{ Tenant, Model string }

// ClassOf is the class of a lane's requests.
func ClassOf(k lane.Key) Class { return Class{Tenant: k.Tenant, Model: k.Model} }

// Config of an Estimator.
type Config struct {
	BytesPerToken float64 // where a model's ratio starts; about 4 for English text
	ImageTokens   int     // where a model's prompt tokens of one image start
	Output        int     // expected output tokens until enough is known
	Quantile      float64 // of the output lengths, 0..1: how careful an expectation is
	Window        int     // latest lengths looked at, per class and per model
	Enough        int     // lengths from which on a window is believed
	Classes       int     // most classes and, apart, models remembered; the longest unused gives way
}

// DefaultConfig expects 200 tokens out until 50 finishes are seen, then the 0.7
// quantile of the last 512; 1,024 classes are at most 4 MiB. An image counts 1,024
// tokens, about what the common vision encoders make of a megapixel.
func DefaultConfig() Config {
	return Config{BytesPerToken: 4, ImageTokens: 1024, Output: 200, Quantile: 0.7, Window: 512, Enough: 50, Classes: 1024}
}

// Validate names the first field that cannot work.
func (c *Config) Validate() error {
	switch {
	case !(c.BytesPerToken >= minRatio && c.BytesPerToken <= maxRatio):
		return fmt.Errorf("cost: BytesPerToken is %v; set it between %v and %v", c.BytesPerToken, minRatio, maxRatio)
	case c.ImageTokens < 0:
		return fmt.Errorf("cost: ImageTokens is %d; set it to 0 or more", c.ImageTokens)
	case c.Output < 1:
		return fmt.Errorf("cost: Output is %d; set it to 1 or more", c.Output)
	case !(c.Quantile > 0 && c.Quantile < 1):
		return fmt.Errorf("cost: Quantile is %v; set it between 0 and 1", c.Quantile)
	case c.Window < 1 || c.Window > 65_536:
		return fmt.Errorf("cost: Window is %d; set it between 1 and 65536", c.Window)
	case c.Enough < 1 || c.Enough > c.Window:
		return fmt.Errorf("cost: Enough is %d; set it between 1 and Window, %d", c.Enough, c.Window)
	case c.Classes < 1:
		return fmt.Errorf("cost: Classes is %d; set it to 1 or more", c.Classes)
	}
	return nil
}

const (
	// A ratio outside is a body that is not mostly prompt: below one byte per token
	// the template dominates, above 16 most of it is something else.
	minRatio, maxRatio = 0.5, 16.0
	// ratioMemory is how many requests the ratio is learned from, about.
	ratioMemory = 200
	// ratioPrior is the weight of the configured ratio at the start, in tokens: a
	// few short prompts do not turn it, one long one does.
	ratioPrior = 2000
	// imagePrior is the weight of the configured tokens of an image, in images.
	imagePrior = 4
	// maxImage bounds the tokens of an image: above, something else was counted.
	maxImage = 32_768.0
)

// Estimator learns from finished requests. Make it with New.
type Estimator struct {
	cfg     Config
	classes map[Class]*Lengths
	models  map[string]*model
	clock   uint64 // counts uses, for giving way
}

// model is what is known about one model's requests of all classes.
type model struct {
	Lengths
	bytes, tokens       float64 // decaying sums, of requests without images
	images, imageTokens float64 // decaying sums, of requests with images
}

// New returns an Estimator that knows nothing yet.
func New(cfg Config) (*Estimator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Estimator{cfg: cfg, classes: map[Class]*Lengths{}, models: map[string]*model{}}, nil
}

// Ratio is the model's bytes per prompt token.
func (e *Estimator) Ratio(name string) float64 {
	m := e.models[name]
	if m == nil {
		return e.cfg.BytesPerToken
	}
	return min(max(m.bytes/m.tokens, minRatio), maxRatio)
}

// Image is the model's prompt tokens of one image.
func (e *Estimator) Image(name string) float64 {
	m := e.models[name]
	if m == nil {
		return float64(e.cfg.ImageTokens)
	}
	return min(m.imageTokens/m.images, maxImage)
}

// Prompt is the expected prompt tokens of a body with that many bytes of text and
// that many images, at least 1. Leave an image's own bytes out of bytes.
func (e *Estimator) Prompt(name string, bytes, images int) int {
	tokens := math.Ceil(float64(max(bytes, 0))/e.Ratio(name) + float64(max(images, 0))*e.Image(name))
	return int(min(max(tokens, 1), math.MaxInt32))
}

// Output is the expected output tokens of one sequence: a quantile of what its
// class produced, else its model, else the configured start; never above maxTokens
// where that is set.
func (e *Estimator) Output(c Class, maxTokens int) int {
	n := e.cfg.Output
	if l := e.classes[c]; l != nil && l.filled >= e.cfg.Enough {
		n = l.Quantile(e.cfg.Quantile)
	} else if m := e.models[c.Model]; m != nil && m.filled >= e.cfg.Enough {
		n = m.Quantile(e.cfg.Quantile)
	}
	if maxTokens > 0 {
		n = min(n, maxTokens)
	}
	return n
}

// Learn takes in one finished request: what Prompt was asked with, and what the
// engine counted; outputTokens of one sequence. A promptTokens of 0 is not known.
func (e *Estimator) Learn(c Class, bytes, images, promptTokens, outputTokens int) {
	e.clock++
	m := e.models[c.Model]
	if m == nil {
		if len(e.models) >= e.cfg.Classes {
			giveWay(e.models, func(m *model) uint64 { return m.used })
		}
		m = &model{
			Lengths: NewLengths(e.cfg.Window), tokens: ratioPrior, bytes: ratioPrior * e.cfg.BytesPerToken,
			images: imagePrior, imageTokens: imagePrior * float64(e.cfg.ImageTokens),
		}
		e.models[c.Model] = m
	}
	l := e.classes[c]
	if l == nil {
		if len(e.classes) >= e.cfg.Classes {
			giveWay(e.classes, func(l *Lengths) uint64 { return l.used })
		}
		made := NewLengths(e.cfg.Window)
		l = &made
		e.classes[c] = l
	}
	m.used, l.used = e.clock, e.clock
	if outputTokens >= 0 {
		m.Add(outputTokens)
		l.Add(outputTokens)
	}
	const keep = 1 - 1.0/ratioMemory
	switch {
	case promptTokens <= 0 || promptTokens > math.MaxInt32:
	case images > 0: // what the text does not explain is the images'
		rest := float64(promptTokens) - float64(max(bytes, 0))/e.Ratio(c.Model)
		m.images = m.images*keep + float64(images)
		m.imageTokens = m.imageTokens*keep + max(rest, 0)
	case bytes > 0:
		m.tokens = m.tokens*keep + float64(promptTokens)
		m.bytes = m.bytes*keep + float64(bytes)
	}
}

// giveWay drops the entry unused for longest. It looks at all: only a newcomer to
// a full map pays that.
func giveWay[K comparable, V any](m map[K]V, used func(V) uint64) {
	var oldest K
	least := uint64(math.MaxUint64)
	for k, v := range m {
		if u := used(v); u < least {
			oldest, least = k, u
		}
	}
	delete(m, oldest)
}
