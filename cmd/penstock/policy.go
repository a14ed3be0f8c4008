package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/show"
	"penstock/policy"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, show and write a policy: tenants, tiers, rules, lane limits",
		Example: `  penstock policy example > policy.yaml
  penstock policy check policy.yaml
  penstock policy show policy.yaml
  penstock policy push policy.yaml --redis redis:6379
  penstock classify --policy policy.yaml < request.json`,
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "check FILE",
		Short:   "Check a file without starting anything",
		Example: "  penstock policy check /etc/penstock/policy.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flags.ParsePolicy(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid, hash %s\n", args[0], p.Hash)
			return err
		},
	}, &cobra.Command{
		Use:     "show FILE",
		Short:   "Show what a file says, with what it leaves to defaults",
		Example: "  penstock policy show /etc/penstock/policy.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flags.ParsePolicy(args[0])
			if err != nil {
				return err
			}
			return showPolicy(cmd, p)
		},
	}, &cobra.Command{
		Use:     "example",
		Short:   "Print a policy that uses every part, with comments",
		Example: "  penstock policy example > policy.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), policy.Example)
			return err
		},
	}, newPolicyPush())
	return cmd
}

// shownTenants bounds the list of penstock policy show.
const shownTenants = 100

func showPolicy(cmd *cobra.Command, p *policy.Policy) error {
	w := cmd.OutOrStdout()
	_, _ = fmt.Fprintf(w, "hash %s, %d rules, %d models by other names, %d tenants\n\n", p.Hash, p.Rules(), len(p.Aliases()), len(p.Tenants()))
	t := show.Table(w, "TIER", "FLOOR", "CEILING", "AGE", "SLO TTFT", "SLO TPOT")
	for i := range p.Tiers {
		x := &p.Tiers[i]
		name := x.Name
		if name == p.DefaultTier() {
			name += " (default)"
		}
		show.Row(t, name, x.Floor, x.Ceiling, x.Age, orGateway(x.SLOTTFT), orGateway(x.SLOTPOT))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if names := p.Tenants(); len(names) > 0 {
		_, _ = fmt.Fprintln(w)
		t = show.Table(w, "TENANT", "KEYS", "TIER", "MODELS", "DEADLINE", "AT MOST", "DOWNGRADE", "QUOTA")
		for _, name := range names[:min(len(names), shownTenants)] {
			who, _ := p.Tenant(name)
			var limits []string
			for _, l := range p.Limits(nil, &who, "", who.Tier) {
				limits = append(limits, fmt.Sprintf("%d %s/%s", l.Amount, l.Unit, l.Per))
			}
			show.Row(t, name, p.KeysOf(name), p.Tiers[who.Tier].Name, cmp.Or(strings.Join(who.Models, " "), "all"), orGateway(who.Deadline), orGateway(who.MaxDeadline), cmp.Or(strings.Join(p.Downgrades(&who), " "), "no"), cmp.Or(strings.Join(limits, ", "), "none"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if more := len(names) - shownTenants; more > 0 {
			_, _ = fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	return showOnward(w, p)
}

// showOnward shows the lanes beside their own that requests go through.
func showOnward(w io.Writer, p *policy.Policy) error {
	if filters := p.AllFilters(); len(filters) > 0 {
		_, _ = fmt.Fprintln(w)
		t := show.Table(w, "FILTER", "MODEL", "ANSWER", "TOKENS", "REFUSAL")
		for i := range filters {
			model, answer := filters[i].Explain()
			show.Row(t, filters[i].Name, model, answer, filters[i].MaxTokens, filters[i].Refusal)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if reroutes := p.Reroutes(); len(reroutes) > 0 {
		_, _ = fmt.Fprintln(w)
		t := show.Table(w, "REROUTE", "FROM", "ON", "TO")
		for i := range reroutes {
			from, on, to := reroutes[i].Explain(p)
			show.Row(t, reroutes[i].Name, from, on, to)
		}
		return t.Flush()
	}
	return nil
}

func orGateway(d time.Duration) string {
	if d == 0 {
		return "gateway's"
	}
	return d.String()
}
