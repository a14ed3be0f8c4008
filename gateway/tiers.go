package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"penstock/fleet"
)

// Tier is a class of requests as clients know it.
type Tier struct {
	Name    string
	SLOTTFT time.Duration // limits of its requests that name none; 0 = Config's
	SLOTPOT time.Duration
}

// reliefTimes is how many times longer a request may wait whose tier has relief: its
// backlog is long, and it goes on.
const reliefTimes = 4

// defaultTier is the only tier where none are configured.
const defaultTier = "default"

func (c *Config) validateTiers() error {
	known := c.DefaultTier == "" || len(c.Tiers) == 0 && c.DefaultTier == defaultTier
	for i, t := range c.Tiers {
		switch {
		case t.Name == "":
			return fmt.Errorf("gateway: the name of tier %d is empty: set it", i+1)
		case t.SLOTTFT < 0 || t.SLOTTFT > c.MaxDeadline:
			return fmt.Errorf("gateway: slo_ttft of tier %q is %s: set it to at most %s, or leave it out", t.Name, t.SLOTTFT, c.MaxDeadline)
		case t.SLOTPOT < 0 || t.SLOTPOT > time.Minute:
			return fmt.Errorf("gateway: slo_tpot of tier %q is %s: set it to at most 1m, or leave it out", t.Name, t.SLOTPOT)
		}
		known = known || t.Name == c.DefaultTier
	}
	if !known {
		return fmt.Errorf("gateway: default_tier is %q: set it to one of %s", c.DefaultTier, strings.Join(c.tierNames(), ", "))
	}
	return nil
}

// tierNames are those of the tiers, in order.
func (c *Config) tierNames() []string {
	if len(c.Tiers) == 0 {
		return []string{defaultTier}
	}
	names := make([]string, len(c.Tiers))
	for i := range c.Tiers {
		names[i] = c.Tiers[i].Name
	}
	return names
}

// tierOf is the place and name of a request's tier. wrong says what to send instead
// of a name that is not known; without configured tiers the header is not looked at.
func (c *Config) tierOf(h http.Header) (place int, name, wrong string) {
	if len(c.Tiers) == 0 {
		return 0, defaultTier, ""
	}
	asked := h.Get("X-Penstock-Tier")
	if name = strings.TrimSpace(asked); name == "" {
		name = c.DefaultTier
	}
	for i := range c.Tiers {
		if c.Tiers[i].Name == name {
			return i, name, ""
		}
	}
	if asked != "" {
		return 0, "", fmt.Sprintf("The header x-penstock-tier is %q. Send one of: %s.", cut(asked), strings.Join(c.tierNames(), ", "))
	}
	place = len(c.Tiers) - 1
	return place, c.Tiers[place].Name, ""
}

// ofTier are the limits of a request that names none.
func (c *Config) ofTier(place int) limits {
	l := limits{deadline: c.Deadline, ttft: c.SLOTTFT, tpot: c.SLOTPOT}
	if place < len(c.Tiers) {
		t := &c.Tiers[place]
		if t.SLOTTFT > 0 {
			l.ttft = t.SLOTTFT
			l.deadline = max(l.deadline, t.SLOTTFT) // else it could not be used up
		}
		if t.SLOTPOT > 0 {
			l.tpot = t.SLOTPOT
		}
	}
	return l
}

// relieve grants a request of a tier that has relief a longer wait, unless it says
// itself how long it wants to.
func (l *limits) relieve(most time.Duration) {
	if l.deadlineNamed {
		return
	}
	l.deadline = min(reliefTimes*l.deadline, most)
	if l.patience > 0 {
		l.deadline = min(l.deadline, l.patience)
	}
	l.relieved = true
	if !l.ttftNamed {
		l.ttft = max(l.ttft, l.deadline) // it is in time until then
	}
}

// relieved reports whether a tier has relief on an engine of model.
func (d *directory) relieved(model string, tier int, now time.Time) bool {
	return d.rows != nil && fleet.Relief(d.rows(), model, now)>>tier&1 == 1
}
