// probe is the one program of the cluster tests' image: `serve` answers on port 8080, `get URL` fetches.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		get(os.Args[2])
		return
	}
	name, _ := os.Hostname()
	fmt.Println("serving as", name)
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from", name) })
	fail(http.ListenAndServe(":8080", nil))
}

func get(url string) {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	fail(err)
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	fail(err)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
