package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/daemon"
	"larder.io/larder/scheduler/engines/kubernetes/internal/node"
)

func runNode(ctx context.Context, flags *flag.FlagSet, arguments []string) error {
	socket := flags.String("admin-socket", "", "the admin socket of this node's larderd")
	state := flags.String("state-directory", "", "directory on the node's disk, for the record of added datasets")
	credentials := flags.String("credentials-file", "", "AWS_SHARED_CREDENTIALS_FILE of larderd; default: s3-credentials in the state directory")
	namespace := flags.String("namespace", "", "the namespace of the Secrets that Datasets name")
	name := flags.String("node", "", "the name of this node")
	interval := flags.Duration("interval", 5*time.Second, "how often all is compared when nothing happens")
	health := flags.String("health-listen", "0", "HOST:PORT of /healthz and /readyz; 0: none")
	if err := parse(flags, arguments); err != nil {
		return err
	}
	for option, value := range map[string]string{
		"admin-socket": *socket, "state-directory": *state, "namespace": *namespace, "node": *name,
	} {
		if err := require(option, value); err != nil {
			return err
		}
	}
	if *credentials == "" {
		*credentials = filepath.Join(*state, "s3-credentials")
	}
	api, err := daemon.New(*socket)
	if err != nil {
		return fmt.Errorf("--admin-socket: %w", err)
	}
	manager, err := newManager(ctrl.Options{
		Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: *health, Logger: ctrl.Log,
	})
	if err != nil {
		return err
	}
	recorder := manager.GetEventRecorder("larder-node")
	keeper, err := node.NewKeeper(node.Options{
		Client: manager.GetClient(), Secrets: manager.GetAPIReader(), Namespace: *namespace, Daemon: api, Now: time.Now,
		Warn: func(dataset *v1alpha1.Dataset, reason, message string) {
			recorder.Eventf(dataset, nil, corev1.EventTypeWarning, reason, "Cache", "node %s: %s", *name, message)
		},
		RecordFile: filepath.Join(*state, "kubernetes-datasets.json"), CredentialsFile: *credentials,
	})
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	if err := keeper.SetUp(manager, *interval); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	if err := addHealthChecks(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}
