package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/neighbours"
	"penstock/cmd/penstock/reload"
	"penstock/cmd/penstock/show"
	"penstock/config"
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

// reloadWithin bounds a reload: its policy is read within 2 s.
const reloadWithin = 10 * time.Second

func newReload() *cobra.Command {
	var admin, output string
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a process read its policy and keys again, and say what changed",
		Long: `reload makes a running standalone, agent or gateway on this host read its policy, gossip's keys and its configuration
file again, and says of each part what became of it: applied, unchanged, refused, or, of settings that hold from the
start to the end, needs restart. What is refused stays as it was. SIGHUP does the same, into the log.

Exit code 1 if something was refused, 4 if nobody answers at --admin.`,
		Example: `  penstock reload                           # standalone or agent
  penstock reload --admin 127.0.0.1:4785    # gateway
  penstock reload -o json | jq '.parts[] | select(.result == "needs restart")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := config.Load(cmd.Flags(), "", os.LookupEnv); err != nil {
				return exit.Usagef("%w", err)
			}
			if err := show.CheckOutput(output); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), reloadWithin)
			defer cancel()
			report, err := reload.Ask(ctx, admin)
			if err != nil {
				return err
			}
			return reload.Write(cmd.OutOrStdout(), report, output)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", "127.0.0.1:4782", "admin address of the process; a gateway's is 127.0.0.1:4785")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
