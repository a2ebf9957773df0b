/* SPDX-License-Identifier: MIT
 *
 * spans: uses weft from C++17. Every node writes numbers to a span in its own pool; node 0 gets the spans of all nodes and adds up the
 * numbers. Destructors close the node and free the spans.
 *
 * Run:
 *     weft run -n 4 -- ./spans
 * It prints:
 *     4 spans of 1000 numbers: the sum is 7998000
 */
#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>
#include <weft.h>

/* The C headers do not use the name `weft`, so C++ bindings may use it. */
namespace weft
{

constexpr size_t NUMBERS = 1000;

void check(int rc, const char *what)
{
    if (rc < 0)
        throw std::runtime_error(std::string(what) + ": " + weft_error());
}

using node = std::unique_ptr<weft_node, decltype(&weft_close)>;

node open_node()
{
    weft_node *w = nullptr;
    check(weft_open(&w, nullptr), "open");
    return node(w, weft_close);
}

/* `count` values of T in this node's pool. */
template <typename T> class span
{
  public:
    span(weft_node *w, size_t count) : w_(w), count_(count)
    {
        check(weft_alloc(w, count * sizeof(T), &at_), "alloc");
        std::memset(weft_ptr(w, at_, count * sizeof(T)), 0, count * sizeof(T));
    }
    ~span()
    {
        weft_free(w_, at_);
    }
    span(const span &) = delete;
    span &operator=(const span &) = delete;

    weft_gaddr at() const
    {
        return at_;
    }
    T *begin()
    {
        return static_cast<T *>(weft_ptr(w_, at_, count_ * sizeof(T)));
    }
    T *end()
    {
        return begin() + count_;
    }

  private:
    weft_node *w_;
    size_t count_;
    weft_gaddr at_ = WEFT_NULL;
};

void run()
{
    node w = open_node();
    const uint32_t me = weft_rank(w.get()), nodes = weft_size(w.get());

    span<uint64_t> mine(w.get(), NUMBERS);
    std::iota(mine.begin(), mine.end(), me * NUMBERS);
    std::vector<weft_gaddr> spans(nodes); /* addresses of all nodes' spans */
    const weft_gaddr at = mine.at();
    check(weft_exchange(w.get(), &at, 1, spans.data(), nullptr, WEFT_TIMEOUT_DEFAULT), "exchange");

    if (me == 0) {
        uint64_t sum = 0;
        for (weft_gaddr address : spans) {
            std::array<uint64_t, NUMBERS> copy;
            check(weft_get_blocking(w.get(), copy.data(), address, sizeof copy), "get");
            sum = std::accumulate(copy.begin(), copy.end(), sum);
        }
        std::cout << nodes << " spans of " << NUMBERS << " numbers: the sum is " << sum << "\n";
    }
    check(weft_barrier(w.get(), WEFT_TIMEOUT_DEFAULT), "barrier"); /* after this, node 0 has read all spans, and they may be freed */
}

} // namespace weft

int main()
{
    try {
        weft::run();
    } catch (const std::exception &e) {
        std::cerr << "spans: " << e.what() << "\n";
        return 1;
    }
    return 0;
}
