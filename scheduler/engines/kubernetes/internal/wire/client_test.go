package wire

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
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

// listen starts a server at the socket that answers every request with this status, and counts them.
func listen(t *testing.T, path string, status int) *atomic.Int64 {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		writer.WriteHeader(status)
		writer.Write([]byte("{}"))
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return &asked
}

func TestAsksTheOneThatLeadsAndStaysWithIt(t *testing.T) {
	folder := t.TempDir()
	nobody, standby, leader := filepath.Join(folder, "a"), filepath.Join(folder, "b"), filepath.Join(folder, "c")
	standbyAsked := listen(t, standby, http.StatusMisdirectedRequest)
	leaderAsked := listen(t, leader, http.StatusOK)
	client, err := New(Options{Endpoint: nobody + ", " + standby + "," + leader})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := client.Do(context.Background(), http.MethodPost, "/v1/jobs", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if standbyAsked.Load() != 1 || leaderAsked.Load() != 2 {
		t.Errorf("the one that stands by was asked %d times, want 1; the leader %d times, want 2",
			standbyAsked.Load(), leaderAsked.Load())
	}
}

func TestSaysSoIfNobodyLeads(t *testing.T) {
	folder := t.TempDir()
	first, second := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	asked := listen(t, first, http.StatusMisdirectedRequest)
	listen(t, second, http.StatusMisdirectedRequest)
	client, err := New(Options{Endpoint: first + "," + second})
	if err != nil {
		t.Fatal(err)
	}
	err = client.Do(context.Background(), http.MethodGet, "/v1/status", nil, nil)
	if !IsStatus(err, http.StatusMisdirectedRequest) || asked.Load() != 1 {
		t.Errorf("the error is %v after %d requests, want HTTP 421 after 1", err, asked.Load())
	}
}

func TestOnlyAGetIsRepeatedAfterTheConnectionBroke(t *testing.T) {
	folder := t.TempDir()
	breaks, leader := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	listener, err := net.Listen("unix", breaks)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connection.Read(make([]byte, 1))
			connection.Close()
		}
	}()
	listen(t, leader, http.StatusOK)
	for method, want := range map[string]bool{http.MethodGet: true, http.MethodPost: false} {
		client, err := New(Options{Endpoint: breaks + "," + leader})
		if err != nil {
			t.Fatal(err)
		}
		err = client.Do(context.Background(), method, "/v1/jobs", nil, nil)
		if (err == nil) != want {
			t.Errorf("%s: the error is %v, want one: %v", method, err, !want)
		}
	}
}

func TestServerThatHangsIsNotWaitedForIfThereAreOthers(t *testing.T) {
	folder := t.TempDir()
	hangs, leader := filepath.Join(folder, "a"), filepath.Join(folder, "b")
	listener, err := net.Listen("unix", hangs) // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := listen(t, leader, http.StatusOK)
	for _, endpoint := range []string{hangs, hangs + "," + leader} {
		client, err := New(Options{Endpoint: endpoint})
		if err != nil {
			t.Fatal(err)
		}
		if several := endpoint != hangs; several != client.HasSeveral() || (client.getTimeout < requestTimeout) != several {
			t.Errorf("%s: an answer may take %v", endpoint, client.getTimeout)
		}
		if !client.HasSeveral() {
			continue
		}
		client.getTimeout = 10 * time.Millisecond
		patience, cancel := context.WithTimeout(context.Background(), requestTimeout/2)
		defer cancel()
		for range 2 {
			if err := client.Do(patience, http.MethodGet, "/v1/queue", nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if asked.Load() != 2 {
		t.Errorf("the leader was asked %d times, want 2", asked.Load())
	}
}
