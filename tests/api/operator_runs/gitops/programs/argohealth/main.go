// argohealth runs a health check over objects from standard input, as JSON one after the other, and prints a line of JSON
// for each. It runs it in the Lua that Argo CD has, with as few libraries as Argo CD gives to a check from argocd-cm.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "wanted: the file of the health check")
		os.Exit(2)
	}
	if err := checkAll(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "argohealth:", err)
		os.Exit(1)
	}
}

func checkAll(script string, in io.Reader, out io.Writer) error {
	for objects := json.NewDecoder(in); ; {
		var object map[string]any
		if err := objects.Decode(&object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		told, err := check(script, object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", told); err != nil {
			return err
		}
	}
}

// As (VM).runLua and (VM).ExecuteHealthLua in Argo CD's util/lua.
func check(script string, object map[string]any) ([]byte, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		open := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(open, lua.LString(library.name)); err != nil {
			return nil, err
		}
	}
	state.SetGlobal("obj", luajson.DecodeValue(state, object))
	if err := state.DoFile(script); err != nil {
		return nil, err
	}
	return luajson.Encode(state.Get(-1))
}
