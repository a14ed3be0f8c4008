package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/policy/apikey"
)

func newKeys() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "keys",
		Short:   "API keys and the key of gossip",
		Example: "  printf %s \"$KEY\" | penstock keys hash\n  penstock keys gossip /etc/penstock/gossip-key",
	}
	cmd.AddCommand(newKeysGossip())
	cmd.AddCommand(&cobra.Command{
		Use:   "hash",
		Short: "Hash a key read from standard input, for the files of --api-keys and --policy",
		Long: `Reads one key from standard input, so that it shows in no process list, and prints
the hash to put into the file of --api-keys:

    acme: sha256:9f86d0…`,
		Example: "  printf %s \"$KEY\" | penstock keys hash\n  openssl rand -base64 32 | tee key | penstock keys hash",
		RunE: func(cmd *cobra.Command, _ []string) error {
			line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
			key := strings.TrimRight(line, "\r\n")
			if key == "" {
				return exit.Usagef("no key on standard input (%v). Try: printf %%s \"$KEY\" | penstock keys hash", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), apikey.Hash(key))
			return err
		},
	})
	return cmd
}
