package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/neighbours"
	"penstock/cmd/penstock/reload"
	"penstock/cmd/penstock/show"
	"penstock/config"
)

// reloader reads again what may change while a process runs.
type reloader struct {
	policies *policies
	keys     *neighbours.Neighbours // gossip's keys; nil = no gossip
	settings *settings              // nil = not known
	read     atomic.Value           // fingerprint of gossip's key file
}

// newReloader is for a process that has just read its policy and keys.
func newReloader(p *policies, keys *neighbours.Neighbours, s *settings) *reloader {
	r := &reloader{policies: p, keys: keys, settings: s}
	r.read.Store(fingerprint(keys.KeyFile()))
	return r
}

// report reloads each part, whatever becomes of the others.
func (r *reloader) report(ctx context.Context) *reload.Report {
	report := &reload.Report{APIVersion: "penstock/v1", Parts: []reload.Outcome{r.policies.reload(ctx)}}
	if r.keys.KeyFile() != "" {
		report.Parts = append(report.Parts, r.gossipKeys())
	}
	report.Parts = append(report.Parts, r.settings.compare(report.Err() == nil)...)
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
	now := fingerprint(file)
	if err := r.keys.Reload(); err != nil {
		return reload.Outcome{Part: name, Result: reload.Refused, Detail: err.Error()}
	}
	if r.read.Swap(now) == now {
		return reload.Outcome{Part: name, Result: reload.Unchanged, Detail: file}
	}
	return reload.Outcome{Part: name, Result: reload.Applied, Detail: file}
}

// readOnce are the flags of files that are read at the start alone.
var readOnce = []string{"api-keys", "engine-api-key-file", "rocketmq-credentials-file", "rocketmq-ca-file", "redis-password-file", "redis-ca-file"}

// settings are the flags of a process as it runs.
type settings struct {
	flags *pflag.FlagSet
	fresh func() *cobra.Command
	files map[string]string // fingerprints of readOnce's files
}

// newSettings is nil where fresh is.
func newSettings(f *pflag.FlagSet, fresh func() *cobra.Command) *settings {
	if fresh == nil {
		return nil
	}
	s := &settings{f, fresh, map[string]string{}}
	for _, name := range readOnce {
		if path, _ := f.GetString(name); path != "" {
			s.files[name] = fingerprint(path)
		}
	}
	return s
}

// fingerprint is the same for the same content.
func fingerprint(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// compare reads the configuration file again, as a start with the same command line
// would, and says what would be another then. check: whether that start would succeed,
// too; where the policy is wrong, that is known.
func (s *settings) compare(check bool) []reload.Outcome {
	if s == nil {
		return nil
	}
	file, _ := s.flags.GetString("config")
	file = config.Find(file, os.LookupEnv)
	fresh := s.fresh().Flags()
	s.flags.VisitAll(func(f *pflag.Flag) {
		if g := fresh.Lookup(f.Name); f.Changed && g != nil { // given on the command line
			g.Changed = true
			if list, ok := f.Value.(pflag.SliceValue); ok {
				_ = g.Value.(pflag.SliceValue).Replace(list.GetSlice())
				return
			}
			_ = g.Value.Set(f.Value.String())
		}
	})
	origins, err := config.Load(fresh, file, os.LookupEnv)
	if err == nil && check {
		_, err = readOptions(fresh)
	}
	if err != nil {
		return []reload.Outcome{{Part: "settings", Result: reload.Refused, Detail: err.Error()}}
	}
	var all []reload.Outcome
	fresh.VisitAll(func(f *pflag.Flag) {
		if was := s.flags.Lookup(f.Name); was != nil && !config.NotASetting(f.Name) && was.Value.String() != f.Value.String() {
			all = append(all, reload.Outcome{Part: f.Name, Result: reload.NeedsRestart, Detail: fmt.Sprintf("%s (%s), was %s", redacted(f.Value.String()), origins[f.Name], redacted(was.Value.String()))})
		}
	})
	for _, name := range readOnce {
		if path, _ := s.flags.GetString(name); path != "" && s.files[name] != fingerprint(path) {
			all = append(all, reload.Outcome{Part: name, Result: reload.NeedsRestart, Detail: path + " has changed"})
		}
	}
	if len(all) == 0 {
		all = append(all, reload.Outcome{Part: "settings", Result: reload.Unchanged, Detail: cmp.Or(file, "no configuration file")})
	}
	return all
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
