package main

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newMetrics is a registry with the process's own metrics.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

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
