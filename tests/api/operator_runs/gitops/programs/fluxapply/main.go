// fluxapply does to the manifests on standard input what Flux's kustomize-controller does to those of a Kustomization,
// with the library that the controller does it with.
//
//	fluxapply KUBECONFIG NAMESPACE apply            apply what differs; prints what was done to each object
//	fluxapply KUBECONFIG NAMESPACE wait DURATION    wait until all are current; fails when one has failed, or with the time
//	fluxapply KUBECONFIG NAMESPACE prune            delete those that an earlier apply made, and wait until they are gone
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// As in the controller's main.go and kustomization_controller.go.
const (
	controller    = "kustomize-controller"
	group         = "kustomize.toolkit.fluxcd.io"
	kustomization = "models"
	interval      = 500 * time.Millisecond
)

func main() {
	log.SetLogger(logr.Discard())
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fluxapply:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("wanted: KUBECONFIG NAMESPACE apply|wait|prune, and not %q", args)
	}
	manager, err := connect(args[0])
	if err != nil {
		return err
	}
	objects, err := read(os.Stdin, manager, args[1])
	if err != nil {
		return err
	}
	switch command := args[2]; {
	case command == "apply" && len(args) == 3:
		return apply(manager, objects)
	case command == "wait" && len(args) == 4:
		return wait(manager, objects, args[3])
	case command == "prune" && len(args) == 3:
		return prune(manager, objects, args[1])
	default:
		return fmt.Errorf("no such command: %q", args[2:])
	}
}

func connect(kubeconfig string) (*ssa.ResourceManager, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, http)
	if err != nil {
		return nil, err
	}
	kube, err := client.New(config, client.Options{HTTPClient: http, Mapper: mapper})
	if err != nil {
		return nil, err
	}
	poller := polling.NewStatusPoller(kube, mapper, polling.Options{})
	return ssa.NewResourceManager(kube, poller, ssa.Owner{Field: controller, Group: group}), nil
}

func read(in io.Reader, manager *ssa.ResourceManager, namespace string) ([]*unstructured.Unstructured, error) {
	objects, err := utils.ReadObjects(in)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		object.SetNamespace(namespace)
	}
	manager.SetOwnerLabels(objects, kustomization, namespace)
	return objects, normalize.UnstructuredList(objects)
}

func apply(manager *ssa.ResourceManager, objects []*unstructured.Unstructured) error {
	options := ssa.DefaultApplyOptions()
	options.Cleanup = ssa.ApplyCleanupOptions{
		Annotations: []string{corev1.LastAppliedConfigAnnotation},
		FieldManagers: []ssa.FieldManager{
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: controller, OperationType: metav1.ManagedFieldsOperationUpdate},
		},
	}
	changes, err := manager.ApplyAll(context.Background(), objects, options)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(changes.ToMap())
}

func wait(manager *ssa.ResourceManager, objects []*unstructured.Unstructured, duration string) error {
	timeout, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	return manager.Wait(objects, ssa.WaitOptions{Interval: interval, Timeout: timeout, FailFast: true})
}

func prune(manager *ssa.ResourceManager, objects []*unstructured.Unstructured, namespace string) error {
	options := ssa.DefaultDeleteOptions()
	options.Inclusions = manager.GetOwnerLabels(kustomization, namespace)
	changes, err := manager.DeleteAll(context.Background(), objects, options)
	if err != nil {
		return err
	}
	if err := manager.WaitForSetTermination(changes, ssa.WaitOptions{Interval: interval, Timeout: time.Minute}); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(changes.ToMap())
}
