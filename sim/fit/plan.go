package fit

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// kind is what a point measures.
type kind uint8

const (
	decode kind = iota // batch answers that decode
	beside             // a prompt that comes in beside batch answers that decode
	lone               // a prompt on an idle engine
)

// short is the prompt, in tokens, of the answers beside which others come in.
const short = 32

// point is one measurement.
type point struct {
	kind   kind
	prompt int // tokens
	batch  int // answers that decode
}

func (p point) String() string {
	switch p.kind {
	case decode:
		return fmt.Sprintf("%d answers with prompts of %d tokens", p.batch, p.prompt)
	case beside:
		return fmt.Sprintf("a prompt of %d tokens beside %d answers", p.prompt, p.batch)
	}
	return fmt.Sprintf("a prompt of %d tokens alone", p.prompt)
}

// seats it takes at once.
func (p point) seats() int {
	if p.kind == decode {
		return p.batch
	}
	return p.batch + 1
}

// plan is the points that fit into the engine. The one with most answers comes first
// and finds the seats. The others come in an order drawn, so that the engine's getting
// slower, or a neighbour's coming and going, looks like no coefficient.
func plan(c *Config, random *rand.Rand) []point {
	var lengths []int
	for _, p := range c.Prompts {
		if p = min(p, c.longest()); !slices.Contains(lengths, p) {
			lengths = append(lengths, p)
		}
	}
	var all []point
	for _, p := range lengths {
		for _, n := range c.Batches {
			if c.fits(p, n) && (c.MaxSeqs == 0 || n <= c.MaxSeqs) {
				all = append(all, point{decode, p, n})
			}
		}
		for _, n := range []int{1, 4} {
			if c.fits(p+n*short, 1) && (c.MaxSeqs == 0 || n < c.MaxSeqs) {
				all = append(all, point{beside, p, n})
			}
		}
		if c.fits(p, 1) {
			all = append(all, point{lone, p, 0})
		}
	}
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	most := 0
	for i, p := range all {
		if cmp.Or(cmp.Compare(p.batch, all[most].batch), cmp.Compare(all[most].prompt, p.prompt)) > 0 {
			most = i
		}
	}
	if len(all) > 0 {
		all[0], all[most] = all[most], all[0]
	}
	return all
}

// longest prompt that leaves room for an answer.
func (c *Config) longest() int { return c.MaxModelLen - 3*c.Steps }

// output is how many tokens an answer may run to: the others of its batch have to
// come in first, in steps of at least 256 tokens.
func (c *Config) output(prompt, batch int) int {
	return min(3*c.Steps+patience(prompt)+prompt*batch/256, c.MaxModelLen-prompt)
}

// fits keeps a tenth of the cache free, so that nothing is preempted: prompts, and
// what the answers grow while the others of the batch come in, at 512 tokens a step.
func (c *Config) fits(prompt, batch int) bool {
	grown := 2*c.Steps + prompt*batch/512
	return batch*(prompt+grown) <= c.KVTokens*9/10
}

// patience is for how many steps of those that run no other answer may begin until
// the engine counts as full: the next prompt may take steps of 128 tokens.
func patience(prompt int) int { return 20 + prompt/128 }
