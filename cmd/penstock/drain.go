package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	penstockv1 "penstock/proto/penstock/v1"
)

// progressEvery is how often a drain says how far it is, where nothing changed.
const progressEvery = 5 * time.Second

func newDrain() *cobra.Command {
	var c caller
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Make an engine take no more work, and wait until it is idle",
		Long: `drain makes the agent of NODE take no more work: health says NOT_SERVING, its lanes go to others, what runs goes
on. The process stays, until: penstock resume NODE. It finds the agent through the one that --grpc names, waits
until nothing runs and says how far it is. Interrupted, the engine stays draining.

Off the agent's host it needs a client certificate, see docs/status.md.`,
		Example: `  penstock drain n7
  penstock drain n7 --grpc gpu1:4781 --ca ca.pem --cert me.pem --key me.key
  penstock drain n7 --wait 0        # do not wait`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd.Flags()); err != nil {
				return err
			}
			if wait < 0 {
				return usage("--wait %v: want 0 (do not wait) or more", wait)
			}
			a, err := c.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer a.close()
			return a.drain(cmd.Context(), wait, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.flags(cmd.Flags())
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for what runs; 0 = not at all")
	return cmd
}

// target is the agent of one node.
type target struct {
	node, address string
	client        penstockv1.AgentServiceClient
	close         func()
}

// find connects to the agent of node: the one --grpc names, or the one it knows of.
func (c *caller) find(ctx context.Context, node string) (*target, error) {
	answer, err := call(ctx, c, penstockv1.AgentServiceClient.Cluster, &penstockv1.ClusterRequest{})
	if err != nil {
		return nil, err
	}
	engines := answer.GetEngines()
	i := slices.IndexFunc(engines, func(e *penstockv1.EngineState) bool { return e.GetNode() == node })
	if i < 0 {
		names := make([]string, len(engines))
		for i, e := range engines {
			names[i] = e.GetNode()
		}
		return nil, fmt.Errorf("%s knows no node %q; it knows: %s", c.grpc, node, strings.Join(names, ", "))
	}
	address := c.grpc
	if !engines[i].GetLocal() {
		if address = engines[i].GetGrpc(); address == "" {
			return nil, fmt.Errorf("%s does not know the address of the agent of %s: name it with --grpc HOST:PORT", c.grpc, node)
		}
	}
	t := &target{node: node, address: address}
	t.client, t.close, err = c.dial(address)
	return t, err
}

func (t *target) drain(ctx context.Context, wait time.Duration, out, progress io.Writer) error {
	once, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	answer, err := t.client.Drain(once, &penstockv1.DrainRequest{Node: t.node})
	if err != nil {
		return explain(t.address, err)
	}
	if wait == 0 {
		_, err := fmt.Fprintf(out, "%s is draining, %s in flight\n", t.node, plural(int(answer.GetInflightRequests()), "request", "requests"))
		return err
	}
	begin := time.Now()
	watch, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stream, err := t.client.WatchState(watch, &penstockv1.WatchStateRequest{Node: t.node})
	if err != nil {
		return explain(t.address, err)
	}
	left, said := int32(-1), begin
	for {
		r, err := stream.Recv()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted; %s stays draining with %d in flight, until: penstock resume %s", t.node, max(left, 0), t.node)
		case watch.Err() != nil:
			return fmt.Errorf("%s still has %s in flight after %v; it stays draining", t.node, plural(int(left), "request", "requests"), wait)
		case err != nil:
			return explain(t.address, err)
		}
		e := r.GetEngines()[0]
		if e.GetCondition() != "draining" {
			return fmt.Errorf("%s was resumed meanwhile: it is %s", t.node, cmp.Or(e.GetWhy(), e.GetCondition()))
		}
		now := time.Now()
		if e.GetInflightRequests() == 0 {
			_, err := fmt.Fprintf(out, "%s is drained after %s; to take work again: penstock resume %s\n", t.node, max(now.Sub(begin).Round(time.Second/10), time.Second/10), t.node)
			return err
		}
		if e.GetInflightRequests() != left && now.Sub(said) >= time.Second || left < 0 || now.Sub(said) >= progressEvery {
			said = now
			_, _ = fmt.Fprintf(progress, "%s: %s in flight after %s\n", t.node, plural(int(e.GetInflightRequests()), "request", "requests"), now.Sub(begin).Round(time.Second))
		}
		left = e.GetInflightRequests()
	}
}
