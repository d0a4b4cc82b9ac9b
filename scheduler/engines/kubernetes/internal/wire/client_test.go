package wire

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestSendsTokenAsItIsNow(t *testing.T) {
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		seen = append(seen, request.Header.Get("Authorization"))
		writer.Write([]byte("{}"))
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "token")
	client, err := New(Options{Endpoint: server.URL, TokenFile: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"first\n", "second"} {
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := client.Do(context.Background(), http.MethodGet, "/", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 2 || seen[0] != "Bearer first" || seen[1] != "Bearer second" {
		t.Errorf("the server saw %q", seen)
	}
}

func TestRefusalHasStatusAndMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
		writer.WriteHeader(http.StatusConflict)
		writer.Write([]byte(`{"error": {"code": "already_exists", "message": "the job is registered already"}}`))
	})}
	go server.Serve(listener)
	defer server.Close()
	client, err := New(Options{Endpoint: path})
	if err != nil {
		t.Fatal(err)
	}
	err = client.Do(context.Background(), http.MethodPost, "/v1/jobs", map[string]string{"name": "a"}, nil)
	if !IsStatus(err, http.StatusConflict) || IsStatus(err, http.StatusNotFound) {
		t.Errorf("the error is %v, want HTTP 409", err)
	}
	if want := "POST /v1/jobs: the job is registered already (HTTP 409)"; err == nil || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}

func TestUnknownKindOfEndpointIsRefused(t *testing.T) {
	if _, err := New(Options{Endpoint: "allocator:7600"}); err == nil {
		t.Error("the endpoint was accepted")
	}
}
