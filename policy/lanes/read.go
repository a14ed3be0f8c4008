package lanes

import (
	"slices"
	"strings"

	"penstock/policy/document"
	"penstock/policy/glob"
)

// MaxPatterns is how many patterns a file may have.
const MaxPatterns = 256

// File is the part "lanes" of a policy's file.
type File struct {
	By       []string      `yaml:"by"`
	Default  fileLimits    `yaml:"default"`
	Patterns []filePattern `yaml:"patterns"`
}

type filePattern struct {
	Pattern `yaml:",inline"`
	Limits  fileLimits `yaml:",inline"`
}

type fileLimits struct {
	Concurrency *int     `yaml:"concurrency"`
	Starts      *float64 `yaml:"starts-per-second"`
	Sends       *float64 `yaml:"sends-per-second"`
	Requests    *int     `yaml:"max-requests"`
	Bytes       *int64   `yaml:"max-bytes"`
	Width       *int     `yaml:"width"`
}

// Read makes the lanes of a file, in whose tiers they are. What is wrong goes to d.
func Read(d *document.Document, f *File, tiers []string) Lanes {
	var l Lanes
	if len(f.By) > 0 {
		for i, name := range f.By {
			if !slices.Contains([]string{"tier", "type", "model", "pool", "tenant"}, name) || slices.Index(f.By, name) != i {
				d.Wrong([]any{"lanes", "by", i}, "%q: write each of tier, type, model, pool, tenant at most once", name)
			}
		}
		for _, name := range []string{"tier", "model", "pool"} {
			if !slices.Contains(f.By, name) {
				d.Wrong([]any{"lanes", "by"}, "%s is missing: who starts first and where depends on it; only type and tenant can be left out", name)
			}
		}
		l.NoType, l.NoTenant = !slices.Contains(f.By, "type"), !slices.Contains(f.By, "tenant")
	}
	l.rest = f.Default.over(Limits{})
	l.rest.check(d, []any{"lanes", "default"})
	if !d.Most([]any{"lanes", "patterns"}, "patterns", len(f.Patterns), MaxPatterns) {
		return l
	}
	for i, from := range f.Patterns {
		at := []any{"lanes", "patterns", i}
		pattern := limited{from.Pattern, from.Limits.over(l.rest)}
		l.Check(d, at, &pattern.Pattern, tiers)
		pattern.limits.check(d, at)
		l.patterns = append(l.patterns, pattern)
	}
	return l
}

// Check finds what is wrong about a pattern that stands at a place of the file.
func (l *Lanes) Check(d *document.Document, at []any, p *Pattern, tiers []string) {
	for key, value := range map[string]string{"tier": p.Tier, "type": p.Type, "model": p.Model, "pool": p.Pool, "tenant": p.Tenant} {
		if value != "" {
			d.Word(append(at, key), value, document.MaxName)
		}
	}
	if p.Tier != "" && !slices.ContainsFunc(tiers, func(name string) bool { return glob.Match(p.Tier, name) }) {
		d.Wrong(append(at, "tier"), "no tier is like %q; there are %s", p.Tier, strings.Join(tiers, ", "))
	}
	if p.Tenant != "" && l.NoTenant || p.Type != "" && l.NoType {
		d.Wrong(at, "lanes.by leaves out what this pattern asks for")
	}
}

// over is base with what is written.
func (l fileLimits) over(base Limits) Limits {
	put(&base.Concurrency, l.Concurrency)
	put(&base.StartsPerSecond, l.Starts)
	put(&base.SendsPerSecond, l.Sends)
	put(&base.MaxRequests, l.Requests)
	put(&base.MaxBytes, l.Bytes)
	put(&base.Width, l.Width)
	return base
}

func put[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (l Limits) check(d *document.Document, at []any) {
	d.Number(append(at, "concurrency"), float64(l.Concurrency), 1e6)
	d.Number(append(at, "starts-per-second"), l.StartsPerSecond, 1e6)
	d.Number(append(at, "sends-per-second"), l.SendsPerSecond, 1e6)
	d.Number(append(at, "max-requests"), float64(l.MaxRequests), 1e6)
	d.Number(append(at, "max-bytes"), float64(l.MaxBytes), 1<<40)
	d.Number(append(at, "width"), float64(l.Width), 1024)
}
