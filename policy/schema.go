package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"penstock/policy/document"
	"penstock/policy/lanes"
	"penstock/policy/quotas"
)

// file is a policy as it is written. The keys are the yaml tags.
type file struct {
	DefaultTier string                  `yaml:"default-tier"`
	Quota       quotas.File             `yaml:"quota"` // of all tenants together
	Tiers       []fileTier              `yaml:"tiers"`
	Tenants     map[string]fileTenant   `yaml:"tenants"`
	Models      map[string][]fileTarget `yaml:"models"`
	Rules       []fileRule              `yaml:"rules"`
	Filters     []fileFilter            `yaml:"filters"`
	Reroutes    []fileReroute           `yaml:"reroutes"`
	Lanes       lanes.File              `yaml:"lanes"`
}

type fileTier struct {
	TierFile `yaml:",inline"`
	Slice    int `yaml:"slice"` // tokens per minute of quota that it has for itself
}

// TierFile is a tier as it is written, in a policy or in a flag. The YAML reader's errors
// quote the name of a type, so it has none of its own.
type TierFile = struct {
	Name    string         `yaml:"name"`
	Floor   float64        `yaml:"floor"`
	Ceiling *float64       `yaml:"ceiling"`
	Age     *time.Duration `yaml:"age"`
	SLOTTFT time.Duration  `yaml:"slo-ttft"`
	SLOTPOT time.Duration  `yaml:"slo-tpot"`
}

// ages are those of tiers that name none, by place; all after have the last.
var ages = [...]time.Duration{5 * time.Second, 5 * time.Second, 30 * time.Second, 120 * time.Second}

// ReadTier is the tier at place, from 0, with what is not written. Nothing is checked.
func ReadTier(f *TierFile, place int) Tier {
	t := Tier{Name: f.Name, Floor: f.Floor, Ceiling: 1, Age: ages[min(place, len(ages)-1)], SLOTTFT: f.SLOTTFT, SLOTPOT: f.SLOTPOT}
	if f.Ceiling != nil {
		t.Ceiling = *f.Ceiling
	}
	if f.Age != nil {
		t.Age = *f.Age
	}
	return t
}

type fileTenant struct {
	Keys        []string          `yaml:"keys"`
	Tier        string            `yaml:"tier"`
	Models      []string          `yaml:"models"`
	Quotas      quotas.FileTenant `yaml:",inline"`
	Deadline    time.Duration     `yaml:"deadline"`
	MaxDeadline time.Duration     `yaml:"max-deadline"`
	Fairness    bool              `yaml:"trust-fairness-id"`
	Downgrade   fileTiers         `yaml:"downgrade"`
}

type fileTarget struct {
	Model  string `yaml:"model"`
	Weight *int   `yaml:"weight"`
	Prompt int    `yaml:"prompt-up-to"`
}

type fileRule struct {
	Name string   `yaml:"name"`
	When fileWhen `yaml:"when"`
	Then fileTo   `yaml:"then"`
}

// fileTo is a lane, or a part of one.
type fileTo struct {
	Tier  string `yaml:"tier"`
	Type  string `yaml:"type"`
	Model string `yaml:"model"`
	Pool  string `yaml:"pool"`
}

type fileWhen struct {
	Tenant      document.Words    `yaml:"tenant"`
	Model       document.Words    `yaml:"model"`
	Path        document.Words    `yaml:"path"`
	Headers     map[string]string `yaml:"headers"`
	ServiceTier document.Words    `yaml:"service-tier"`
	Keyword     document.Words    `yaml:"keyword"`
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
