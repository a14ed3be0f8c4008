package gossip

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/hashicorp/memberlist"
)

const (
	maxKeys    = 8       // every key is tried on every packet
	maxKeyFile = 1 << 16 // bytes
	newKey     = "make one with: penstock keys gossip FILE"
)

// ReadKeys reads a key file; Gossip.Reload has its form. The first key is the one that
// encrypts. Errors never hold a key.
func ReadKeys(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gossip: key file: %w; %s", err, newKey)
	}
	defer f.Close()
	page, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("gossip: key file: %w", err)
	}
	keys, err := parseKeys(page)
	if err != nil {
		return nil, fmt.Errorf("gossip: key file %s%w", path, err)
	}
	return keys, nil
}

// parseKeys says in an error what follows the file's name.
func parseKeys(page []byte) ([][]byte, error) {
	if len(page) > maxKeyFile {
		return nil, fmt.Errorf(" is longer than %d bytes: one base64 key per line", maxKeyFile)
	}
	var keys [][]byte
	number := 0
	for line := range bytes.Lines(page) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key := make([]byte, base64.StdEncoding.DecodedLen(len(line)))
		n, err := base64.StdEncoding.Decode(key, line)
		key = key[:n]
		switch {
		case err != nil:
			return nil, fmt.Errorf(", line %d: not base64; %s", number, newKey)
		case memberlist.ValidateKey(key) != nil:
			return nil, fmt.Errorf(", line %d: a key of %d bytes, not 16, 24 or 32; %s", number, n, newKey)
		case len(keys) == maxKeys:
			return nil, fmt.Errorf(", line %d: more than %d keys; remove those no node uses", number, maxKeys)
		case slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }):
			return nil, fmt.Errorf(", line %d: a key that stands there already; remove the line", number)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf(": no key in it; %s", newKey)
	}
	return keys, nil
}

// install makes ring hold exactly keys, the first to send with. New keys come
// before the switch and old ones go after it, so that nothing sent meanwhile is
// lost. Only the last key of the ring is ever removed, because Keyring.RemoveKey
// moves the ones behind it in a slice that receivers may be reading; a wanted key
// behind an unwanted one is therefore away for a moment.
func install(ring *memberlist.Keyring, keys [][]byte) error {
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	if err := ring.UseKey(keys[0]); err != nil {
		return err
	}
	keep := func(k []byte) bool {
		return slices.ContainsFunc(keys, func(w []byte) bool { return bytes.Equal(w, k) })
	}
	for held := ring.GetKeys(); slices.ContainsFunc(held, func(k []byte) bool { return !keep(k) }); held = ring.GetKeys() {
		if err := ring.RemoveKey(held[len(held)-1]); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	return nil
}
