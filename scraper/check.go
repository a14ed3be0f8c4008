package scraper

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// check reads a full page again with the Prometheus parser: a difference is an
// error of ours, counted and logged once per check.
func (s *Scraper) check(p page, got *values) {
	want, err := readSlowly(p.body)
	switch {
	case err != nil && p.openMetrics: // the parser knows no exemplars and no float timestamps
	case err != nil:
		s.disagree(err.Error())
	default:
		if diff := got.differs(&want); diff != "" {
			s.disagree(diff)
		}
	}
}

// contract is what an engine offers us.
type contract struct {
	alias    [families]int8
	ranks    int // 0 in the zero contract only
	filtered bool
}

// tell logs, once per change, which names the engine exports and how it is read.
func (s *Scraper) tell(got *values) {
	now := contract{alias: got.alias, ranks: got.ranks, filtered: s.filtered}
	if now == s.contract {
		return
	}
	s.contract = now
	found, missing := got.names()
	s.log.Info("metrics page understood", "url", s.cfg.URL, "ranks", got.ranks, "filtered", s.filtered,
		"found", strings.Join(found, " "), "missing_optional", strings.Join(missing, " "))
}

func (s *Scraper) disagree(diff string) {
	s.metrics.errors[Disagrees].Inc()
	s.log.Error("metrics page reads differently with the prometheus parser", "url", s.cfg.URL, "diff", diff)
}

// readSlowly is the same reading by the Prometheus text parser. Comments are left
// out, so that every line is a sample under its own name, whatever type it claims.
func readSlowly(body []byte) (v values, err error) {
	defer func() {
		// The parser has panicked on odd input before; this check must not stop the agent.
		if p := recover(); p != nil {
			err = fmt.Errorf("parser panic: %v", p)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(withoutComments(body)))
	if err != nil {
		return values{}, err
	}
	var r reading
	for name, family := range found {
		w, ok := byName[name]
		if !ok {
			continue
		}
		f := &table[w.family]
		for _, m := range family.GetMetric() {
			var l labels
			for _, pair := range m.GetLabel() {
				l.set([]byte(pair.GetName()), []byte(pair.GetValue()), f.label)
			}
			if f.label != "" && string(l.match) != f.value {
				continue
			}
			if err := r.add(&w, &l, m.GetUntyped().GetValue()); err != nil {
				return values{}, err
			}
		}
	}
	return r.fold()
}

func withoutComments(body []byte) []byte {
	out := make([]byte, 0, len(body))
	for line := range bytes.Lines(body) {
		if !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")) {
			out = append(out, bytes.Replace(line, []byte("\r\n"), []byte("\n"), 1)...)
		}
	}
	return out
}

// differs names the first family that reads differently, "" if none. Sums over
// engines may be added in another order.
func (v *values) differs(other *values) string {
	if v.ranks != other.ranks {
		return fmt.Sprintf("ranks %d, parser %d", v.ranks, other.ranks)
	}
	for f := range table {
		if v.alias[f] != other.alias[f] || math.Abs(v.of[f]-other.of[f]) > 1e-9*math.Abs(v.of[f]) {
			return fmt.Sprintf("%s reads %v, parser %v", table[f].names[0], v.of[f], other.of[f])
		}
	}
	return ""
}
