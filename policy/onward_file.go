package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"penstock/policy/document"
	"penstock/policy/glob"
	"penstock/policy/lanes"
)

// fileReroute sends on what a lane did not serve.
type fileReroute struct {
	Name string         `yaml:"name"`
	From lanes.Pattern  `yaml:"from"`
	On   document.Words `yaml:"on"`
	To   fileTo         `yaml:"to"`
}

// fileFilter is a model that reads requests first.
type fileFilter struct {
	Name      string         `yaml:"name"`
	When      fileWhen       `yaml:"when"`
	Model     string         `yaml:"model"`
	Pool      string         `yaml:"pool"`
	Passes    document.Words `yaml:"passes"`
	Stops     document.Words `yaml:"stops"`
	MaxTokens *int           `yaml:"max-tokens"`
	Refusal   string         `yaml:"refusal"`
}

// fileTiers is true, false, or a list of tiers.
type fileTiers struct {
	any   bool
	names document.Words
}

// UnmarshalYAML takes true and false beside a list or one word.
func (t *fileTiers) UnmarshalYAML(decode func(any) error) error {
	if decode(&t.any) == nil {
		return nil
	}
	return decode(&t.names)
}

// Bounds of a filter's answer and its refusal.
const (
	filterTokens = 16 // where it says none: guards answer in a few words
	maxTokens    = 4096
	maxRefusal   = 500 // bytes
)

func (p *Policy) readReroutes(d *document.Document, f *file) {
	if !d.Most([]any{"reroutes"}, "reroutes", len(f.Reroutes), MaxReroutes) {
		return
	}
	names := map[string]bool{}
	for i, from := range f.Reroutes {
		at := []any{"reroutes", i}
		u := Reroute{
			Name: d.Name(at, "reroute", i, from.Name, names), tier: -1, model: from.To.Model, pool: from.To.Pool, kind: from.To.Type,
			from: from.From,
		}
		p.lanes.Check(d, append(at, "from"), &u.from, p.TierNames())
		p.checkFrom(d, append(at, "from"), &u.from, f)
		if len(from.On) == 0 || len(from.On) > document.MaxList {
			d.Wrong(at, "it has %d troubles under \"on\"; write 1 to %d, such as [context_length_exceeded, 404]", len(from.On), document.MaxList)
		}
		for j, word := range from.On {
			u.readTrouble(d, append(at, "on", j), word)
		}
		to := append(at, "to")
		for key, value := range map[string]string{"type": u.kind, "model": u.model, "pool": u.pool} {
			if value != "" {
				d.Word(append(to, key), value, document.MaxName)
			}
		}
		oneModel(d, append(to, "model"), u.model)
		if from.To.Tier != "" {
			u.tier = p.place(d, append(to, "tier"), from.To.Tier)
		}
		switch {
		case from.To == fileTo{}:
			d.Wrong(at, "it has no \"to\"; write {model, tier, type, pool}, one or more of them")
		case u.kind != "" && p.lanes.NoType:
			d.Wrong(append(to, "type"), "lanes.by leaves out the type")
		case from.To == fileTo{Model: u.model} && u.model == u.from.Model, from.To == fileTo{Tier: from.To.Tier} && from.To.Tier == u.from.Tier,
			from.To == fileTo{Type: u.kind} && u.kind == u.from.Type, from.To == fileTo{Pool: u.pool} && u.pool == u.from.Pool:
			d.Wrong(to, "it leads to where the request comes from")
		}
		p.reroutes = append(p.reroutes, u)
	}
}

// checkFrom finds what no lane is like, of what only the policy gives to lanes.
func (p *Policy) checkFrom(d *document.Document, at []any, l *lanes.Pattern, f *file) {
	if targets := p.aliases[l.Model]; len(targets) > 0 && !slices.ContainsFunc(targets, func(t Target) bool { return t.Model == l.Model }) {
		d.Wrong(append(at, "model"), "%q is one of models: its requests are in the lanes of what stands behind it, such as %q; write that", l.Model, targets[0].Model)
	}
	types, pools := []string{"chat", "completion", "embedding"}, []string{}
	for i := range f.Rules {
		types, pools = append(types, f.Rules[i].Then.Type), append(pools, f.Rules[i].Then.Pool)
	}
	none := func(of, pattern string, all []string) {
		slices.Sort(all)
		all = slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
		if pattern != "" && !slices.ContainsFunc(all, func(s string) bool { return glob.Match(pattern, s) }) {
			d.Wrong(append(at, of), "no %s is like %q; rules give lanes these: %s", of, pattern, strings.Join(all, ", "))
		}
	}
	none("type", l.Type, types)
	none("pool", l.Pool, pools)
}

// oneModel refuses a pattern where one model is to be named.
func oneModel(d *document.Document, at []any, name string) {
	if strings.Contains(name, "*") {
		d.Wrong(at, "%q: write the name of one model", name)
	}
}

// readTrouble reads one entry of "on".
func (u *Reroute) readTrouble(d *document.Document, at []any, word string) {
	if status, err := strconv.Atoi(word); err == nil {
		if status < 400 || status > 499 {
			d.Wrong(at, "%d: write an engine's status from 400 to 499; what fails with 5xx is tried elsewhere first and is tries_used then", status)
		}
		u.statuses = append(u.statuses, status)
		return
	}
	i := slices.Index(classNames[TooLong:], word)
	if i < 0 {
		d.Wrong(at, "unknown trouble %q%s, or an engine's status from 400 to 499", word[:min(len(word), 40)], document.Suggest(word, classNames[TooLong:]))
		return
	}
	u.classes[int(TooLong)+i] = true
}

func (p *Policy) readFilters(d *document.Document, f *file) {
	if !d.Most([]any{"filters"}, "filters", len(f.Filters), MaxFilters) {
		return
	}
	names := map[string]bool{}
	for i, from := range f.Filters {
		at := []any{"filters", i}
		u := Filter{Name: d.Name(at, "filter", i, from.Name, names), MaxTokens: filterTokens, Refusal: from.Refusal, model: from.Model, pool: from.Pool, when: readWhen(d, append(at, "when"), &from.When)}
		d.Word(append(at, "model"), from.Model, document.MaxName)
		oneModel(d, append(at, "model"), from.Model)
		if from.Pool != "" {
			d.Word(append(at, "pool"), from.Pool, document.MaxWord)
		}
		if (len(from.Passes) == 0) == (len(from.Stops) == 0) {
			d.Wrong(at, "write one of passes and stops: patterns of the model's answer, such as passes: [\"safe*\"]")
		}
		for key, list := range map[string]document.Words{"passes": from.Passes, "stops": from.Stops} {
			d.List(append(at, key), list)
		}
		u.passes, u.stops = lower(from.Passes), lower(from.Stops)
		if from.MaxTokens != nil {
			if u.MaxTokens = *from.MaxTokens; u.MaxTokens < 1 || u.MaxTokens > maxTokens {
				d.Wrong(append(at, "max-tokens"), "%d: write 1 to %d", u.MaxTokens, maxTokens)
			}
		}
		if u.Refusal == "" {
			u.Refusal = "The request was stopped by the filter '" + u.Name + "' of this service."
		}
		d.Word(append(at, "refusal"), u.Refusal, maxRefusal)
		p.filters = append(p.filters, u)
	}
}

func lower(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strings.ToLower(s))
	}
	return out
}

// readDowngrade reads which lower tiers a tenant's requests may be put into.
func (p *Policy) readDowngrade(d *document.Document, at []any, t *Tenant, from fileTiers) {
	t.downgrade = from.any
	for i, name := range from.names {
		place := p.place(d, append(at, i), name)
		if slices.Contains(p.TierNames(), name) && place <= t.Tier {
			d.Wrong(append(at, i), "the tier %q is not below the tenant's, %s", name, p.Tiers[t.Tier].Name)
		}
		if slices.Contains(t.downgrades, place) {
			d.Wrong(append(at, i), "the tier %q is there twice", name)
		}
		t.downgrades = append(t.downgrades, place)
	}
	slices.Sort(t.downgrades)
}

// sorted are the keys of a map, in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
