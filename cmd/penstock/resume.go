package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	penstockv1 "penstock/proto/penstock/v1"
)

func newResume() *cobra.Command {
	var c caller
	cmd := &cobra.Command{
		Use:   "resume NODE",
		Short: "Take a drain back",
		Long: `resume makes the agent of NODE take work again after: penstock drain NODE. Health says SERVING after three good
samples. A process that is shutting down refuses it.`,
		Example: `  penstock resume n7
  penstock resume n7 --grpc gpu1:4781 --ca ca.pem --cert me.pem --key me.key`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd.Flags()); err != nil {
				return err
			}
			a, err := c.find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer a.close()
			ctx, cancel := context.WithTimeout(cmd.Context(), callWithin)
			defer cancel()
			answer, err := a.client.Resume(ctx, &penstockv1.ResumeRequest{Node: a.node})
			if err != nil {
				return explain(a.address, err)
			}
			text := "takes work again"
			if !answer.GetWasDraining() {
				text = "was not draining"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", a.node, text)
			return err
		},
	}
	c.flags(cmd.Flags())
	return cmd
}
