package sim

import (
	"math"
	"slices"
)

// Cell is what is played, whatever the policy.
type Cell struct {
	Workload, Profile, Scenario string
	Load                        float64
}

// Cell is where the row's policy was tried.
func (r *Row) Cell() Cell { return Cell{r.Workload, r.Profile, r.Scenario, r.Load} }

// Best keeps of each policy the row with the most goodput in each cell: no baseline
// loses by its setting. They stay in order.
func Best(rows []Row) (best []Row) {
	type place struct {
		policy string
		cell   Cell
	}
	at := map[place]int{}
	for _, r := range rows {
		key := place{r.Policy, r.Cell()}
		i, found := at[key]
		switch {
		case !found:
			at[key] = len(best)
			best = append(best, r)
		case r.Goodput > best[i].Goodput:
			best[i] = r
		}
	}
	return best
}

// Carriable are the policies whose setting somebody chooses once and leaves alone.
func Carriable() []string {
	return []string{"concurrency", "concurrency-even", "bounded-queue", "vllm-caps"}
}

// leastGoodput stands for less, so that ratios and their means stay finite.
const leastGoodput = 0.01

// Carried are rows of a policy's one setting that does best over all workloads and
// loads of a profile: by the geometric mean of its goodput over that of the best
// setting. The policy's name is then NAME-fixed. Nothing for a profile with one cell.
func Carried(rows []Row) (fixed []Row) {
	var profiles []string
	for _, r := range rows {
		if !slices.Contains(profiles, r.Profile) {
			profiles = append(profiles, r.Profile)
		}
	}
	for _, profile := range profiles {
		for _, policy := range Carriable() {
			var own []Row
			for _, r := range rows {
				if r.Profile == profile && r.Policy == policy && r.Scenario == "" {
					own = append(own, r)
				}
			}
			best := Best(own)
			if len(best) < 2 {
				continue
			}
			most := map[Cell]float64{}
			for i := range best {
				most[best[i].Cell()] = max(best[i].Goodput, leastGoodput)
			}
			score := map[string]float64{}
			for i := range own {
				score[own[i].Setting] += math.Log(max(own[i].Goodput, leastGoodput) / most[own[i].Cell()])
			}
			chosen := own[0].Setting
			for i := range own {
				if score[own[i].Setting] > score[chosen] {
					chosen = own[i].Setting
				}
			}
			for _, r := range own {
				if r.Setting == chosen {
					r.Policy += "-fixed"
					fixed = append(fixed, r)
				}
			}
		}
	}
	return fixed
}
