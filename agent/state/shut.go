package state

import (
	"fmt"

	"penstock/reason"
	"penstock/scheduler"
)

// Shut says with the figures of v and the marks of cfg what closes the gate: "kv 94 %
// >= 92 %". "" while it is open.
func Shut(v *scheduler.View, cfg *scheduler.Config) string {
	waiting := max(v.Waiting, v.PendingSeq)
	switch v.Gate {
	case reason.OK:
		return ""
	case reason.KVHigh:
		if v.KV < cfg.KVStop { // closed before, and not open again yet
			return fmt.Sprintf("kv %s, open again below %s", percent(v.KV), percent(cfg.KVReopen))
		}
		return fmt.Sprintf("kv %s >= %s", percent(v.KV), percent(cfg.KVStop))
	case reason.KVBand:
		return fmt.Sprintf("kv %s >= %s", percent(v.KV), percent(cfg.KVStart))
	case reason.KVCredit:
		return fmt.Sprintf("kv %s and %d tokens started that do not show yet", percent(v.KV), v.Credit)
	case reason.WaitingHigh:
		return fmt.Sprintf("%d waiting in the engine >= %d", waiting, cfg.WaitMax)
	case reason.WaitingSome:
		return fmt.Sprintf("%d waiting in the engine >= %d", waiting, cfg.WaitSome)
	case reason.PrefillBusy:
		return fmt.Sprintf("%d prompt tokens before their first token", v.Pending)
	case reason.Cold:
		return "its speed is not known yet"
	}
	return v.Gate.String()
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
