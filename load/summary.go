package load

import (
	"slices"
	"time"
)

// Summary of a run. Rates are per second of Span, so that work done after the last
// arrival is not counted as if it had been done before.
type Summary struct {
	Span          time.Duration // from the start to the last arrival or the end of the last good request
	Requests      int
	Good          int
	Goodput       float64 // good requests per second
	TokenGoodput  float64 // prompt and output tokens of good requests per second
	TTFTp50       time.Duration
	TTFTp99       time.Duration
	GapMax        time.Duration
	GapP99        time.Duration
	Refused       map[string]int // attempts that got no token, by reason
	Untold        int            // refusals (429, 503, 504) without Retry-After
	Told          time.Duration  // the median Retry-After of those that have one
	Quartiles     [4]float64     // share of good requests by prompt-length quartile, shortest first
	WastedTokens  int            // output tokens received by requests that did not end good
	Returned      int            // attempts made after a refusal that told when to come back
	ReturnStarted int            // of those, how many were admitted
}

// Between counts what came of the requests that arrived from from on and before to.
// Where others came before and after them, their rate is that of a steady load: Span
// is to - from, whenever the last of them ended.
func Between(outcomes []Outcome, from, to time.Duration) Summary {
	var inside []Outcome
	for i := range outcomes {
		if at := outcomes[i].Arrival.At; at >= from && at < to && len(outcomes[i].Attempts) > 0 {
			inside = append(inside, outcomes[i])
		}
	}
	s := Summarize(inside)
	s.Goodput *= s.Span.Seconds() / (to - from).Seconds()
	s.TokenGoodput *= s.Span.Seconds() / (to - from).Seconds()
	s.Span = to - from
	return s
}

// Summarize counts what came of a workload.
func Summarize(outcomes []Outcome) Summary {
	s := Summary{Requests: len(outcomes), Refused: map[string]int{}}
	var ttft, gaps, told []time.Duration
	var tokens int
	lengths := make([]int, 0, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		s.Span = max(s.Span, o.Arrival.At)
		if o.Good {
			s.Span = max(s.Span, o.End)
		}
		lengths = append(lengths, o.Arrival.Prompt)
		for k := range o.Attempts {
			a := &o.Attempts[k]
			if a.Tokens > 0 {
				ttft = append(ttft, a.TTFT)
				gaps = append(gaps, a.Gap)
			} else {
				s.Refused[a.Reason]++
			}
			if a.Status >= 429 && a.RetryAfter == 0 {
				s.Untold++
			} else if a.Status >= 429 {
				told = append(told, a.RetryAfter)
			}
			if k > 0 && o.Attempts[k-1].RetryAfter > 0 {
				s.Returned++
				if a.Status == 200 {
					s.ReturnStarted++
				}
			}
			if !o.Good || k < len(o.Attempts)-1 {
				s.WastedTokens += a.Tokens
			}
		}
		if o.Good {
			s.Good++
			tokens += o.Arrival.Prompt + o.Last().Tokens
		}
	}
	if s.Span > 0 {
		s.Goodput = float64(s.Good) / s.Span.Seconds()
		s.TokenGoodput = float64(tokens) / s.Span.Seconds()
	}
	s.Told = quantile(told, 0.5)
	s.TTFTp50, s.TTFTp99 = quantile(ttft, 0.5), quantile(ttft, 0.99)
	s.GapP99, s.GapMax = quantile(gaps, 0.99), quantile(gaps, 1)
	slices.Sort(lengths)
	var all, good [4]int
	for i := range outcomes {
		q := quartile(lengths, outcomes[i].Arrival.Prompt)
		all[q]++
		if outcomes[i].Good {
			good[q]++
		}
	}
	for q := range all {
		if all[q] > 0 {
			s.Quartiles[q] = float64(good[q]) / float64(all[q])
		}
	}
	return s
}

func quartile(sorted []int, length int) int {
	n := len(sorted)
	for q := 1; q < 4; q++ {
		if length < sorted[q*n/4] {
			return q - 1
		}
	}
	return 3
}

// quantile sorts d and gives its q-quantile, 0 for none.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}
