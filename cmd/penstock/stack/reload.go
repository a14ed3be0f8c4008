package stack

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/cmd/penstock/reload"
)

// reloader reads again what may change while a process runs.
type reloader struct {
	policies *policies
	keys     *neighbours.Neighbours // gossip's keys; nil = no gossip
	settings *flags.Settings        // nil = not known
	read     atomic.Value           // fingerprint of gossip's key file
}

// newReloader is for a process that has just read its policy and keys.
func newReloader(p *policies, keys *neighbours.Neighbours, s *flags.Settings) *reloader {
	r := &reloader{policies: p, keys: keys, settings: s}
	r.read.Store(flags.Fingerprint(keys.KeyFile()))
	return r
}

// report reloads each part, whatever becomes of the others.
func (r *reloader) report(ctx context.Context) *reload.Report {
	report := &reload.Report{APIVersion: "penstock/v1", Parts: []reload.Outcome{r.policies.reload(ctx)}}
	if r.keys.KeyFile() != "" {
		report.Parts = append(report.Parts, r.gossipKeys())
	}
	report.Parts = append(report.Parts, r.settings.Compare(report.Err() == nil)...)
	report.OK = report.Err() == nil
	return report
}

// Reload is report for SIGHUP.
func (r *reloader) Reload() error { return r.report(context.Background()).Err() }

// page is report for the admin listener.
func (r *reloader) page(ctx context.Context) (any, bool) {
	report := r.report(ctx)
	return report, report.OK
}

func (p *policies) reload(ctx context.Context) reload.Outcome {
	if p.source == nil {
		return reload.Outcome{Part: "policy", Result: reload.Unchanged, Detail: "by flags"}
	}
	old := p.Current().Hash
	changed, err := p.source.Reload(ctx)
	state := p.State()
	switch {
	case err != nil:
		return reload.Outcome{Part: "policy", Result: reload.Refused, Detail: err.Error()}
	case !changed:
		return reload.Outcome{Part: "policy", Result: reload.Unchanged, Detail: fmt.Sprintf("%s: %s", state.Source, cmp.Or(state.Hash, "none"))}
	}
	return reload.Outcome{Part: "policy", Result: reload.Applied, Detail: fmt.Sprintf("%s: %s, was %s", state.Source, cmp.Or(state.Hash, "none"), cmp.Or(old, "none"))}
}

// gossipKeys reads gossip's keys again.
func (r *reloader) gossipKeys() reload.Outcome {
	const name = "gossip-key-file"
	file := r.keys.KeyFile()
	now := flags.Fingerprint(file)
	if err := r.keys.Reload(); err != nil {
		return reload.Outcome{Part: name, Result: reload.Refused, Detail: err.Error()}
	}
	if r.read.Swap(now) == now {
		return reload.Outcome{Part: name, Result: reload.Unchanged, Detail: file}
	}
	return reload.Outcome{Part: name, Result: reload.Applied, Detail: file}
}
