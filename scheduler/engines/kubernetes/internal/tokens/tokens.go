// Package tokens makes the allocator's tokens. Each node has a token of its own, which is derived from a key and the
// node's name, so that nothing is stored for each node: whoever has the key computes the token.
package tokens

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
)

const keyBytesMin = 32

// ReadKey reads a key. It must be long enough not to be guessed.
func ReadKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	if len(key) < keyBytesMin {
		return nil, fmt.Errorf("the key %s has %d bytes: at least %d are needed", path, len(key), keyBytesMin)
	}
	return key, nil
}

// OfNode returns the token of a node.
func OfNode(key []byte, node string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("node\x00" + node))
	return hex.EncodeToString(mac.Sum(nil))
}

// File returns the allocator's file of tokens: first the lines that are given, then one line for each node.
func File(fixed string, key []byte, nodes []string) string {
	var text strings.Builder
	if fixed = strings.TrimSpace(fixed); fixed != "" {
		text.WriteString(fixed + "\n")
	}
	for _, node := range slices.Sorted(slices.Values(nodes)) {
		text.WriteString("node " + node + " " + OfNode(key, node) + "\n")
	}
	return text.String()
}
