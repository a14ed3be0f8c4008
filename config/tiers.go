package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"penstock/policy"
	"penstock/scheduler"
)

// Tiers is the value of a flag, a variable or a file's key: a YAML list of
// {name, floor, ceiling, age, slo-ttft, slo-tpot}, first goes first.
type Tiers []scheduler.Tier

// Set reads and checks the list; "" is none.
func (t *Tiers) Set(text string) error {
	var list []policy.TierFile
	if err := yaml.UnmarshalWithOptions([]byte(text), &list, yaml.Strict()); err != nil {
		return fmt.Errorf("want a list of {name, floor, ceiling, age, slo-ttft, slo-tpot}: %s", yaml.FormatError(err, false, true))
	}
	all := make(Tiers, len(list))
	for i := range list {
		all[i] = policy.ReadTier(&list[i], i)
	}
	if err := scheduler.ValidateTiers(all); err != nil {
		return err
	}
	*t = all
	return nil
}

// String is the list on one line, as Set reads it.
func (t *Tiers) String() string {
	if len(*t) == 0 {
		return ""
	}
	each := make([]string, len(*t))
	for i, x := range *t {
		each[i] = fmt.Sprintf("{name: %q, floor: %g, ceiling: %g, age: %s", x.Name, x.Floor, x.Ceiling, x.Age)
		if x.SLOTTFT > 0 {
			each[i] += fmt.Sprintf(", slo-ttft: %s", x.SLOTTFT)
		}
		if x.SLOTPOT > 0 {
			each[i] += fmt.Sprintf(", slo-tpot: %s", x.SLOTPOT)
		}
		each[i] += "}"
	}
	return "[" + strings.Join(each, ", ") + "]"
}

// Names are those of the tiers, in order; without any there is "default".
func (t *Tiers) Names() []string {
	if len(*t) == 0 {
		return []string{"default"}
	}
	names := make([]string, len(*t))
	for i := range *t {
		names[i] = (*t)[i].Name
	}
	return names
}

// Place is that of a tier by name, -1 = there is none.
func (t *Tiers) Place(name string) int { return slices.Index(t.Names(), name) }

// Type is the word for the value in a command's help.
func (t *Tiers) Type() string { return "list" }
