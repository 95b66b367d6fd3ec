// kstatus reads Kubernetes objects from standard input, as JSON one after the other, and prints a line of JSON for each:
// what kstatus makes of it, and what Flux's own copy of kstatus does.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	flux "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Flux    string `json:"flux"`
}

func main() {
	if err := judgeAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}

func judgeAll(in io.Reader, out io.Writer) error {
	objects, verdicts := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		told, err := judge(raw)
		if err != nil {
			return err
		}
		if err := verdicts.Encode(told); err != nil {
			return err
		}
	}
}

func judge(raw json.RawMessage) (verdict, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return verdict{}, err
	}
	own, err := kstatus.Compute(object)
	if err != nil {
		return verdict{}, err
	}
	copied, err := flux.Compute(object)
	if err != nil {
		return verdict{}, err
	}
	return verdict{own.Status.String(), own.Message, copied.Status.String()}, nil
}
