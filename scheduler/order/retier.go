package order

import (
	"iter"

	"penstock/scheduler/fair"
)

// SetTiers changes the tiers while requests run, for tiers that ValidateTiers has
// passed; none = one, "default". A tier is known by its name: what runs and waits stays
// in it, with its tenants' counters, wherever its place is now. What runs of a tier
// that is gone counts in the last one and as nobody's there; its heads are forgotten
// until they come again. bills are all that there are.
func (q *Queue) SetTiers(tiers []Tier, bills iter.Seq[*Bill]) {
	old, all := q.tiers, newTiers(tiers, q.ttft, q.tpot)
	to := make([]int, len(old)) // the new place of each
	kept := make([]bool, len(old))
	for i := range old {
		from := &old[i]
		to[i] = len(all) - 1
		for j := range all {
			if all[j].Name == from.Name {
				to[i], kept[i] = j, true
				all[j].fair, all[j].relief, all[j].started = from.fair, from.relief, from.started
			}
		}
		into := &all[to[i]]
		into.inflight += from.inflight
		into.tokens += from.tokens
		into.old += from.old
	}
	for b := range bills {
		if !kept[b.tier] {
			b.who = fair.Tenant{}
		}
		b.tier = to[b.tier]
	}
	for i := 0; i < q.heads.n; i++ {
		e := &q.heads.list[i]
		if !kept[e.tier] {
			q.heads.remove(i)
			i--
			continue
		}
		e.tier = to[e.tier]
	}
	q.tiers = all
}
