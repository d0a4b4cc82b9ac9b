// larder-kubernetes makes Larder follow Kubernetes, which decides where pods run. It has one mode for each place where it
// runs: see docs/kubernetes.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// mode is one of the program's modes. It parses its own options.
type mode struct {
	name string
	help string
	run  func(ctx context.Context, flags *flag.FlagSet, arguments []string) error
}

var modes = []mode{
	{"controller", "tells the allocator which pods run where, and Kubernetes what the allocator knows", runController},
	{"node", "makes the larderd of this node have the Datasets of the cluster", runNode},
	{"tokens", "keeps the allocator's file of tokens as the nodes of the cluster are", runTokens},
	{"token", "writes the token of one node", runToken},
}

// errUsage is an error whose text was printed already.
var errUsage = errors.New("wrong usage")

func main() {
	handler := slog.NewTextHandler(os.Stderr, nil)
	slog.SetDefault(slog.New(handler))
	ctrl.SetLogger(logr.FromSlogHandler(handler))
	klog.SetLogger(logr.FromSlogHandler(handler))
	err := run(ctrl.SetupSignalHandler(), os.Args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "larder-kubernetes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		printModes(os.Stderr)
		return errUsage
	}
	if arguments[0] == "--help" || arguments[0] == "-h" {
		printModes(os.Stdout)
		return nil
	}
	at := slices.IndexFunc(modes, func(one mode) bool { return one.name == arguments[0] })
	if at < 0 {
		fmt.Fprintf(os.Stderr, "larder-kubernetes: unknown mode %q\n", arguments[0])
		printModes(os.Stderr)
		return errUsage
	}
	flags := flag.NewFlagSet("larder-kubernetes "+modes[at].name, flag.ContinueOnError)
	return modes[at].run(ctx, flags, arguments[1:])
}

func printModes(output io.Writer) {
	fmt.Fprintln(output, "usage: larder-kubernetes MODE [OPTION...]; larder-kubernetes MODE --help lists the options")
	for _, one := range modes {
		fmt.Fprintf(output, "  %-11s %s\n", one.name, one.help)
	}
}

// parse reads the options of a mode, which takes no other words. The flag package has printed what is wrong.
func parse(flags *flag.FlagSet, arguments []string) error {
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "larder-kubernetes: unexpected word %q\n", flags.Arg(0))
		return errUsage
	}
	return nil
}

// require checks that an option has a value.
func require(name, value string) error {
	if value == "" {
		return fmt.Errorf("--%s is missing", name)
	}
	return nil
}
