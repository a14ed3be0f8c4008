package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"penstock/cmd/penstock/exit"
	"penstock/gossip"
)

// gossipKeyBytes makes AES-256 keys.
const gossipKeyBytes = 32

// stepMark is the comment in a key file that says how far a rotation is. Reading the
// keys skips it.
const stepMark = "# penstock: rotation, step %d of 3"

// steps of a rotation: what the file holds after each, and what comes next.
var steps = [...]string{
	1: "the old key first, a new one second: every node learns the new key before anybody sends with it.",
	2: "the new key first, the old one second: nodes now send with the new key and still read the old.",
	3: "the new key alone. The old one is of no use any more.",
}

func newKeysGossip() *cobra.Command {
	var force, rotate bool
	cmd := &cobra.Command{
		Use:   "gossip FILE",
		Short: "Make the key file of --gossip-key-file, or rotate its key",
		Long: `gossip writes a new key of 32 random bytes, base64, to FILE, readable by its owner alone. Every agent and gateway of
a fleet needs the same file. A file that is there is left alone unless --force is given: nodes with different keys do
not hear each other.

With --rotate it takes FILE one of three steps further and says what to do: copy it to every host and have every node
read it (systemctl reload, or SIGHUP), then call it again for the next step. No message is lost on the way. The file
remembers its step in a comment and keeps its owner and mode.`,
		Example: `  penstock keys gossip /etc/penstock/gossip-key
  penstock agent --gossip 0.0.0.0:4783 --gossip-key-file /etc/penstock/gossip-key ...
  penstock keys gossip --rotate /etc/penstock/gossip-key`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case rotate && force:
				return exit.Usagef("--rotate keeps the old key where it is needed, --force throws it away: give one of them")
			case rotate:
				return rotateGossipKey(cmd.OutOrStdout(), args[0])
			}
			return makeGossipKey(cmd.OutOrStdout(), args[0], force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there: the fleet is parted until all nodes have the new one")
	cmd.Flags().BoolVar(&rotate, "rotate", false, "take FILE to the next of three steps")
	return cmd
}

func randomGossipKey() string {
	var key [gossipKeyBytes]byte
	rand.Read(key[:]) //nolint:errcheck // never fails
	return base64.StdEncoding.EncodeToString(key[:])
}

func makeGossipKey(w io.Writer, path string, force bool) error {
	page := []byte(randomGossipKey() + "\n")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist) && !force:
		return exit.Usagef("%s is there: replace its key with --rotate, or throw it away with --force", path)
	case errors.Is(err, fs.ErrExist):
		err = replaceFile(path, page)
	case err == nil:
		_, err = f.Write(page)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s has a new key. Every agent and gateway of the fleet needs this file: --gossip-key-file %s\n", path, path)
	return err
}

// rotateGossipKey takes the file one step further: old; old, new; new, old; new.
func rotateGossipKey(w io.Writer, path string) error {
	if _, err := gossip.ReadKeys(path); err != nil { // says what is wrong, with the line
		return err
	}
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	step, comments, keys := 0, "", []string(nil)
	for line := range strings.Lines(string(page)) {
		switch line = strings.TrimSpace(line); {
		case line == "":
		case line[0] != '#':
			keys = append(keys, line)
		default:
			if n, _ := fmt.Sscanf(line, stepMark, &step); n == 0 {
				comments += line + "\n"
			}
		}
	}
	switch {
	case len(keys) == 1:
		step, keys = 1, append(keys, randomGossipKey())
	case len(keys) == 2 && step == 1:
		step, keys = 2, []string{keys[1], keys[0]}
	case len(keys) == 2 && step == 2:
		step, keys = 3, keys[:1]
	default:
		return exit.Usagef("%s holds %d keys and does not say which step of a rotation that is: leave the one that all nodes send with, then --rotate", path, len(keys))
	}
	mark := ""
	if step < 3 {
		mark = fmt.Sprintf(stepMark, step) + "\n"
	}
	if err := replaceFile(path, []byte(comments+mark+strings.Join(keys, "\n")+"\n")); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	_, _ = fmt.Fprintf(w, "step %d of 3: %s has %s\nNow copy it to every host and have every agent and gateway read it: systemctl reload 'penstock-agent@*' penstock-gateway\n", step, path, steps[step])
	if step < 3 {
		_, err = fmt.Fprintf(w, "When all have (penstock_gossip_isolated is 0 everywhere): penstock keys gossip --rotate %s\n", path)
	}
	return err
}

// replaceFile writes content beside path and puts it in its place, with the owner and
// mode that path has: a key file belongs to the service's user.
func replaceFile(path string, content []byte) (err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	was, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".gossip-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if owner, ok := was.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	_, err = io.Copy(f, bytes.NewReader(content))
	if err = errors.Join(err, f.Chmod(was.Mode().Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
