package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"larder.io/larder/scheduler/engines/kubernetes/internal/tokens"
)

const allocatorProgram = "larder-allocator"

func runTokens(ctx context.Context, flags *flag.FlagSet, arguments []string) error {
	key := flags.String("key-file", "", "the key that nodes' tokens are derived from")
	fixed := flags.String("fixed-file", "", "lines of the file that are no node's, such as the operators' tokens")
	output := flags.String("file", "", "the allocator's file of tokens, which is written")
	interval := flags.Duration("interval", 30*time.Second, "how often the Secrets are read again")
	once := flags.Bool("once", false, "write the file and end")
	if err := parse(flags, arguments); err != nil {
		return err
	}
	for option, value := range map[string]string{"key-file": *key, "fixed-file": *fixed, "file": *output} {
		if err := require(option, value); err != nil {
			return err
		}
	}
	if *once {
		return writeTokens(ctx, tokens.Writer{FixedFile: *fixed, KeyFile: *key, Path: *output})
	}
	manager, err := newManager(ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	writer := &tokens.Writer{
		Client: manager.GetClient(), FixedFile: *fixed, KeyFile: *key, Path: *output,
		Reload: func() error { return tokens.SignalProgram(allocatorProgram) },
	}
	if err := writer.SetUp(manager, *interval); err != nil {
		return fmt.Errorf("set up the tokens: %w", err)
	}
	return manager.Start(ctx)
}

// writeTokens writes the file once, before the allocator starts.
func writeTokens(ctx context.Context, writer tokens.Writer) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	if writer.Client, err = client.New(config, client.Options{}); err != nil {
		return fmt.Errorf("set up the client: %w", err)
	}
	writer.Reload = func() error { return nil }
	return writer.Compare(ctx)
}

func runToken(_ context.Context, flags *flag.FlagSet, arguments []string) error {
	key := flags.String("key-file", "", "the key that nodes' tokens are derived from")
	name := flags.String("node", "", "the name of the node")
	output := flags.String("file", "", "the file that is written")
	if err := parse(flags, arguments); err != nil {
		return err
	}
	for option, value := range map[string]string{"key-file": *key, "node": *name, "file": *output} {
		if err := require(option, value); err != nil {
			return err
		}
	}
	secret, err := tokens.ReadKey(*key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*output, []byte(tokens.OfNode(secret, *name)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the token: %w", err)
	}
	return nil
}
