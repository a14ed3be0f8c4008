package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"penstock/policy/document"
)

// file is a policy as it is written. The keys are the yaml tags.
type file struct {
	DefaultTier string                  `yaml:"default-tier"`
	Quota       fileQuota               `yaml:"quota"` // of all tenants together
	Tiers       []fileTier              `yaml:"tiers"`
	Tenants     map[string]fileTenant   `yaml:"tenants"`
	Models      map[string][]fileTarget `yaml:"models"`
	Rules       []fileRule              `yaml:"rules"`
	Filters     []fileFilter            `yaml:"filters"`
	Reroutes    []fileReroute           `yaml:"reroutes"`
	Lanes       fileLanes               `yaml:"lanes"`
}

type fileTier struct {
	Name    string         `yaml:"name"`
	Floor   float64        `yaml:"floor"`
	Ceiling *float64       `yaml:"ceiling"`
	Age     *time.Duration `yaml:"age"`
	SLOTTFT time.Duration  `yaml:"slo-ttft"`
	SLOTPOT time.Duration  `yaml:"slo-tpot"`
	Slice   int            `yaml:"slice"` // tokens per minute of quota that it has for itself
}

type fileTenant struct {
	Keys        []string             `yaml:"keys"`
	Tier        string               `yaml:"tier"`
	Models      []string             `yaml:"models"`
	Quota       fileQuota            `yaml:"quota"`       // of all its requests
	KeyQuota    fileQuota            `yaml:"key-quota"`   // of each of its keys
	ModelQuota  map[string]fileQuota `yaml:"model-quota"` // by pattern
	Deadline    time.Duration        `yaml:"deadline"`
	MaxDeadline time.Duration        `yaml:"max-deadline"`
	Fairness    bool                 `yaml:"trust-fairness-id"`
	Downgrade   fileTiers            `yaml:"downgrade"`
}

type fileTarget struct {
	Model  string `yaml:"model"`
	Weight *int   `yaml:"weight"`
	Prompt int    `yaml:"prompt-up-to"`
}

type fileRule struct {
	Name string   `yaml:"name"`
	When fileWhen `yaml:"when"`
	Then fileThen `yaml:"then"`
}

type fileWhen struct {
	Tenant      words             `yaml:"tenant"`
	Model       words             `yaml:"model"`
	Path        words             `yaml:"path"`
	Headers     map[string]string `yaml:"headers"`
	ServiceTier words             `yaml:"service-tier"`
	Keyword     words             `yaml:"keyword"`
	Stream      *bool             `yaml:"stream"`
	Tools       *bool             `yaml:"tools"`
	Images      *bool             `yaml:"images"`
	Prompt      span              `yaml:"prompt-tokens"`
	MaxTokens   span              `yaml:"max-tokens"`
	System      span              `yaml:"system-bytes"`
	Priority    span              `yaml:"priority"`
}

// span is a range of numbers, both ends included.
type span struct {
	Min *int `yaml:"min"`
	Max *int `yaml:"max"`
}

// words is a list, or one word.
type words []string

type fileThen struct {
	Tier  string `yaml:"tier"`
	Type  string `yaml:"type"`
	Model string `yaml:"model"`
	Pool  string `yaml:"pool"`
}

type fileLanes struct {
	By       []string      `yaml:"by"`
	Default  fileLimits    `yaml:"default"`
	Patterns []filePattern `yaml:"patterns"`
}

type filePattern struct {
	Tier   string     `yaml:"tier"`
	Type   string     `yaml:"type"`
	Model  string     `yaml:"model"`
	Pool   string     `yaml:"pool"`
	Tenant string     `yaml:"tenant"`
	Limits fileLimits `yaml:",inline"`
}

type fileLimits struct {
	Concurrency *int     `yaml:"concurrency"`
	Starts      *float64 `yaml:"starts-per-second"`
	Sends       *float64 `yaml:"sends-per-second"`
	Requests    *int     `yaml:"max-requests"`
	Bytes       *int64   `yaml:"max-bytes"`
	Width       *int     `yaml:"width"`
}

// UnmarshalYAML takes one word for a list of one.
func (w *words) UnmarshalYAML(decode func(any) error) error {
	var list []string
	if err := decode(&list); err == nil {
		*w = list
		return nil
	}
	var one string
	if err := decode(&one); err != nil {
		return err
	}
	*w = words{one}
	return nil
}

// draft is a file whose values are checked and made into a policy.
type draft struct{ *document.Document }

// read parses text into f.
func read(text []byte, f *file) (draft, error) {
	if len(text) > MaxBytes {
		return draft{}, fmt.Errorf("the file has %d bytes; write at most %d", len(text), MaxBytes)
	}
	d, err := document.Read(text, f)
	if errors.Is(err, document.ErrEmpty) {
		err = fmt.Errorf("%w. See: penstock policy example", err)
	}
	return draft{d}, err
}

// escaped is how a word may stand in a JSON body: as it is, and with all that is not
// ASCII escaped. They are equal for ASCII.
func escaped(word string) (plain, ascii string) {
	raw, _ := json.Marshal(word) // a string: cannot fail
	plain = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(raw[1 : len(raw)-1]))
	var b strings.Builder
	for _, r := range plain {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return plain, b.String()
}
