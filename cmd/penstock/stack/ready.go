package stack

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"penstock/admin"
)

// readiness is what the parts of a process say of themselves, by name.
type readiness map[string]func() (bool, string)

// all reports whether every part is ready, and which are not and why.
func (r readiness) all() (bool, string) {
	var why []string
	for name, ready := range r {
		if ok, reason := ready(); !ok {
			why = append(why, name+": "+reason)
		}
	}
	slices.Sort(why)
	return len(why) == 0, strings.Join(why, "; ")
}

// each is "ready", or why not, by part.
func (r readiness) each() map[string]string {
	said := map[string]string{}
	for name, ready := range r {
		if ok, why := ready(); ok {
			said[name] = "ready"
		} else {
			said[name] = why
		}
	}
	return said
}

// logReady logs when what ready says changes; called every few seconds.
func logReady(log *slog.Logger, was *string, ready func() (bool, string)) {
	ok, why := ready()
	now := why
	if ok {
		now = "ready"
	}
	if now == *was {
		return
	}
	*was = now
	if ok {
		log.Info("ready")
	} else {
		log.Warn("not ready", "why", why)
	}
}

func alive() (bool, string) { return true, "" }

// newAdmins makes the loopback server and the one for all interfaces.
func newAdmins(role string, deps admin.Deps) (private, public *admin.Server, err error) {
	cfg := admin.DefaultConfig()
	cfg.Name = role
	if private, err = admin.New(cfg, deps); err != nil {
		return nil, nil, err
	}
	cfg.Debug = false
	public, err = admin.New(cfg, deps)
	return private, public, err
}

// watchReady logs when readiness changes.
func watchReady(log *slog.Logger, ready func() (bool, string)) part {
	return func(ctx context.Context) error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		was := ""
		for {
			select {
			case <-tick.C:
				logReady(log, &was, ready)
			case <-ctx.Done():
				return nil
			}
		}
	}
}
