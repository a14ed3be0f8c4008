package state

import (
	"testing"
	"time"

	"penstock/reason"
	"penstock/scheduler"
)

func TestShut(t *testing.T) {
	cfg := scheduler.DefaultConfig()
	for want, v := range map[string]scheduler.View{
		"kv 94 % >= 92 %":                                   {Gate: reason.KVHigh, KV: 0.94},
		"kv 85 %, open again below 75 %":                    {Gate: reason.KVHigh, KV: 0.85},
		"kv 81 % >= 80 %":                                   {Gate: reason.KVBand, KV: 0.81},
		"kv 60 % and 5 tokens started that do not show yet": {Gate: reason.KVCredit, KV: 0.6, Credit: 5},
		"24 waiting in the engine >= 20":                    {Gate: reason.WaitingHigh, Waiting: 3, PendingSeq: 24},
		"6 waiting in the engine >= 5":                      {Gate: reason.WaitingSome, Waiting: 6},
		"9000 prompt tokens before their first token":       {Gate: reason.PrefillBusy, Pending: 9000},
		"its speed is not known yet":                        {Gate: reason.Cold},
		"kv 70 %, what runs will use 96 %":                  {Gate: reason.KVForecast, KV: 0.7, Peak: 0.96},
		"all 64 seats (max_num_seqs) are taken":             {Gate: reason.SeatsFull, Seats: 64},
		"steps take 120 ms":                                 {Gate: reason.StepsSlow, StepTime: 120 * time.Millisecond},
		"":                                                  {Gate: reason.OK, KV: 0.1},
		"late":                                              {Gate: reason.Late},
	} {
		v.StartBelow, v.StopFrom, v.OpenBelow = cfg.KVStart, cfg.KVStop, cfg.KVReopen
		if got := Shut(&v, &cfg); got != want {
			t.Errorf("gate %v: got %q, want %q", v.Gate, got, want)
		}
	}
}

func TestRing(t *testing.T) {
	var r Ring
	if got := r.Last(3); len(got) != 0 {
		t.Errorf("empty: got %v", got)
	}
	for i := range Remembered + 5 {
		r.Add(Decision{After: 0, ID: string(rune('a' + i%26))})
	}
	got := r.Last(Remembered + 10)
	if len(got) != Remembered || got[0].ID != string(rune('a'+(Remembered+4)%26)) || got[len(got)-1].ID != string(rune('a'+5)) {
		t.Errorf("last: got %d, from %q to %q, want the newest %d, newest first", len(got), got[0].ID, got[len(got)-1].ID, Remembered)
	}
}
