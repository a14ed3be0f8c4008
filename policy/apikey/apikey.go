// Package apikey is the API keys that tenants come with. Only their hashes are kept.
package apikey

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"penstock/policy/document"
)

// Prefix marks a key stored as its hash.
const Prefix = "sha256:"

// Keys are those of all tenants. The zero value has none. Safe for concurrent use once
// all are added.
type Keys struct {
	byPrefix map[uint64][]stored // first 8 bytes of the hash, so that a lookup does not visit every tenant
	count    int
}

type stored struct {
	hash [sha256.Size]byte
	Key
}

// Key is one of them, without giving it away.
type Key struct {
	Tenant string
	ID     string // the hash's first 64 bits, 16 hex digits
}

// Hash is how a key is written in a keys file that keeps no secrets.
func Hash(key string) string {
	hash := sha256.Sum256([]byte(key))
	return Prefix + hex.EncodeToString(hash[:])
}

// Parse reads a YAML mapping of tenant to key, or to "sha256:<64 hex digits>".
// An error names the line. A tenant or a key that appears twice is refused, and
// so is a file without keys: it would lock everybody out.
func Parse(yaml []byte) (*Keys, error) {
	file, err := parser.ParseBytes(yaml, 0)
	if err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n") // what follows quotes the file, keys and all
		return nil, fmt.Errorf("api keys: %s", line)
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("api keys: the file has several documents; keep one")
	}
	keys := &Keys{}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		mapping, ok := doc.Body.(ast.MapNode)
		if !ok {
			return nil, fmt.Errorf("api keys: line %d: want \"tenant: key\" lines", doc.Body.GetToken().Position.Line)
		}
		for entry := mapping.MapRange(); entry.Next(); {
			line := entry.Key().GetToken().Position.Line
			if err := keys.read(entry); err != nil {
				return nil, fmt.Errorf("api keys: line %d: %w", line, err)
			}
		}
	}
	if keys.count == 0 {
		return nil, errors.New("api keys: the file has no keys; add a line \"tenant: key\"")
	}
	return keys, nil
}

func (k *Keys) read(entry *ast.MapNodeIter) error {
	tenant, ok := scalar(entry.Key())
	if !ok || tenant == "" {
		return errors.New("the tenant must be a plain word")
	}
	if len(tenant) > document.MaxName {
		return fmt.Errorf("the tenant's name has %d bytes, at most %d", len(tenant), document.MaxName)
	}
	key, ok := scalar(entry.Value())
	if !ok || key == "" {
		return fmt.Errorf("the key of %q must be a text; quote it", tenant)
	}
	if !strings.HasPrefix(key, Prefix) {
		key = Hash(key)
	}
	return k.Add(tenant, key)
}

// Add adds a key of a tenant that is given as its hash, with or without Prefix. A hash
// that is none, and one that is there, are errors, with the name and not the key.
func (k *Keys) Add(tenant, hash string) error {
	raw, err := hex.DecodeString(strings.TrimPrefix(hash, Prefix))
	if err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("the hash of %q needs %d hex digits after %q", tenant, 2*sha256.Size, Prefix)
	}
	key := stored{[sha256.Size]byte(raw), Key{Tenant: tenant, ID: hex.EncodeToString(raw[:8])}}
	if other, dup := k.find(key.hash); dup {
		return fmt.Errorf("tenants %q and %q have the same key", other.Tenant, tenant)
	}
	if k.byPrefix == nil {
		k.byPrefix = map[uint64][]stored{}
	}
	prefix := binary.BigEndian.Uint64(key.hash[:])
	k.byPrefix[prefix] = append(k.byPrefix[prefix], key)
	k.count++
	return nil
}

// scalar is the text of a YAML word, number or string as it is written.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (k *Keys) find(hash [sha256.Size]byte) (found Key, ok bool) {
	for _, key := range k.byPrefix[binary.BigEndian.Uint64(hash[:])] {
		if subtle.ConstantTimeCompare(key.hash[:], hash[:]) == 1 {
			return key.Key, true
		}
	}
	return Key{}, false
}

// Bearer is the key of an Authorization header; false: it has none that is known.
func (k *Keys) Bearer(authorization string) (found Key, ok bool) {
	scheme, key, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Key{}, false
	}
	return k.find(sha256.Sum256([]byte(strings.TrimSpace(key))))
}

// Count is how many keys there are.
func (k *Keys) Count() int { return k.count }

// Of is how many keys a tenant has.
func (k *Keys) Of(tenant string) (n int) {
	for _, keys := range k.byPrefix {
		for i := range keys {
			if keys[i].Tenant == tenant {
				n++
			}
		}
	}
	return n
}
