package tokens

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestNodesHaveDifferentTokensThatLast(t *testing.T) {
	key := []byte(strings.Repeat("k", keyBytesMin))
	if OfNode(key, "n1") != OfNode(key, "n1") || OfNode(key, "n1") == OfNode(key, "n2") {
		t.Error("a node's token must be its own, and the same each time")
	}
	if OfNode(key, "n1") == OfNode([]byte(strings.Repeat("l", keyBytesMin)), "n1") {
		t.Error("the token must depend on the key")
	}
}

func TestShortKeyIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("k", keyBytesMin-1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path); err == nil {
		t.Error("the key was accepted")
	}
}

func TestFileFollowsNodes(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := strings.Repeat("k", keyBytesMin)
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	client := fake.NewClientBuilder().WithObjects(node("n2"), node("n1")).Build()
	reloads := 0
	refuses := errors.New("not now")
	writer := Writer{
		Client: client, KeyFile: write("key", key), FixedFile: write("fixed", "operator ann TOKEN\n"),
		Path: filepath.Join(folder, "tokens"),
		Reload: func() error {
			reloads++
			if reloads == 1 {
				return refuses
			}
			return nil
		},
	}
	if err := writer.Compare(context.Background()); !errors.Is(err, refuses) {
		t.Fatalf("the error is %v, want that of the reload", err)
	}
	for range 2 { // A reload that failed is repeated, one that succeeded is not.
		if err := writer.Compare(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if reloads != 2 {
		t.Errorf("%d reloads, want 2", reloads)
	}
	want := "operator ann TOKEN\nnode n1 " + OfNode([]byte(key), "n1") + "\nnode n2 " + OfNode([]byte(key), "n2") + "\n"
	if text, err := os.ReadFile(writer.Path); err != nil || string(text) != want {
		t.Errorf("the file has %q (%v), want %q", text, err, want)
	}
	if err := client.Delete(context.Background(), node("n2")); err != nil {
		t.Fatal(err)
	}
	if err := writer.Compare(context.Background()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(writer.Path); err != nil || strings.Contains(string(text), "n2") {
		t.Errorf("the file has %q (%v), want no line of n2", text, err)
	}
	if reloads != 3 {
		t.Errorf("%d reloads, want 3", reloads)
	}
}
